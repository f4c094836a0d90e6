// Read before every source of DeepInfer (and precompiled). torch's headers come first with their own meaning; after
// them, every request for page-locked memory becomes one for ordinary memory, since torch refuses the former on a
// machine without an accelerator. A function-like macro does not expand inside itself, so no source is touched.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/extension.h>
#include <torch/torch.h>

#include <pybind11/numpy.h>

#include <format>

#define pinned_memory(wanted) pinned_memory(false)
