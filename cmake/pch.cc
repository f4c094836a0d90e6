// Carries the precompiled header that all targets reuse (cmake/rooms.cmake).
