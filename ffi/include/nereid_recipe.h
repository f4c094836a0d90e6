// DeepSeek V4 and V4.1: prompts and parsed output, over the Rust crate deepseek-recipe; token ids of any
// Hugging Face tokenizer.json, over tokenizers (ffi/recipe). A C ABI in a shared library that is loaded
// when a model is opened that needs either.
//
// Rules for every call: it returns one of the NR_ codes; on another than NR_OK, *error is a
// NUL-terminated message that the caller frees with nr_string_free, and no other output is written.
// Rust panics never cross: they are NR_PANIC. Strings given out are freed with nr_string_free.
//
// A request is a Chat Completions body as deepseek-recipe reads it: model ("DeepSeek-V4-Pro" or
// "DeepSeek-V4.1-Flash"), messages, tools, tool_choice, thinking, reasoning_effort, response_format.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nr_code {
    NR_OK = 0,
    NR_INVALID = 1,  // the caller's request; the message is deepseek-recipe's
    NR_PANIC = 4,    // a defect
} nr_code;

typedef struct nr_parser nr_parser;
typedef struct nr_tokenizer nr_tokenizer;

void nr_string_free(char* string);

// *out: {"prompt": text, "special": [[begin, end], ...], "thinking": bool, "in_calls": bool}. `special`
// are byte ranges of the prompt that are special tokens; everything else is plain text, whatever it
// looks like. in_calls: the prompt opened the block of calls (a forced call).
int32_t nr_render(const char* request, size_t size, char** out, char** error);

// Parses the output of a request. Push and finish give the events since the last call as JSON:
// [["content", text], ["reasoning", text], ["name", tool], ["arguments", text], ...]. One thread at a
// time.
int32_t nr_parser_new(const char* request, size_t size, nr_parser** out, char** error);
int32_t nr_parser_push(nr_parser* parser, const char* text, size_t size, char** out, char** error);
int32_t nr_parser_finish(nr_parser* parser, char** out, char** error);
void nr_parser_free(nr_parser* parser);

// A Hugging Face tokenizer.json of any kind. Immutable; may be shared by threads.
int32_t nr_tokenizer_new(const char* json, size_t size, nr_tokenizer** out, char** error);
void nr_tokenizer_free(nr_tokenizer* tokenizer);
// Ids of `text`; marks[3i], marks[3i + 1] and marks[3i + 2]: a span and the id that stands for it,
// ascending, not empty. All else is encoded without the added vocabulary, whatever it looks like.
// Freed with nr_ids_free.
int32_t nr_tokenizer_encode(const nr_tokenizer* tokenizer, const char* text, size_t size,
                            const uint64_t* marks, size_t mark_count, uint32_t** ids, size_t* count,
                            char** error);
// The same with the added vocabulary, as `tokenizers` does it; nothing is added (no BOS).
int32_t nr_tokenizer_parse(const nr_tokenizer* tokenizer, const char* text, size_t size,
                           uint32_t** ids, size_t* count, char** error);
void nr_ids_free(uint32_t* ids, size_t count);

#ifdef __cplusplus
}
#endif
