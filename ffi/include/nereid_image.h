// Images as callers send them: PNG, JPEG, GIF or WebP, over the Rust crate image (ffi/guidance, whose
// static library holds it). A C ABI. No global state; may be called by several threads at once.
//
// Nothing is given back but what the image is: it is decoded whole, frame by frame, so that no engine
// gets a broken one, and its pixels are dropped. At most one picture of max_pixels is in memory, up to
// 8 bytes a pixel (an animated one: twice), beside what the decoder needs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ni_code {
    NI_OK = 0,
    NI_INVALID = 1,      // damaged or cut off
    NI_UNSUPPORTED = 2,  // another format, or a feature of its format that the decoder lacks
    NI_LIMIT = 3,        // beyond the limits, by its header or while frames were counted
    NI_PANIC = 4,        // a defect
} ni_code;

typedef enum ni_format { NI_PNG = 1, NI_JPEG = 2, NI_GIF = 3, NI_WEBP = 4 } ni_format;

// Held against an image's header before anything is allocated for it.
typedef struct ni_limits {
    uint32_t max_side;    // pixels
    uint32_t max_frames;  // of an animated one
    uint64_t max_pixels;  // of all its frames together
} ni_limits;

typedef struct ni_image {
    uint32_t format;  // ni_format
    uint32_t width;   // pixels, as stored (no EXIF rotation)
    uint32_t height;
    uint32_t frames;
} ni_image;

// On another code than NI_OK *out is untouched and *error is a NUL-terminated message that the caller
// frees with ni_string_free.
int32_t ni_decode(const uint8_t* data, size_t size, const ni_limits* limits, ni_image* out,
                  char** error);
void ni_string_free(char* string);

#ifdef __cplusplus
}
#endif
