// Grammars enforced during decoding, over the Rust crate llguidance (ffi/guidance). A C ABI.
//
// Rules for every call: it returns one of the NG_ codes; on another than NG_OK, *error (if error is
// not null) is a NUL-terminated message that the caller frees with ng_string_free, and no other
// output is written. Rust panics never cross: they are NG_PANIC. No global state.
//
// Threads: an ng_vocab is immutable and may be shared. An ng_matcher is used by one thread at a
// time; different matchers may be used at once, also clones of one (they share caches behind a
// lock).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ng_code {
    NG_OK = 0,
    NG_INVALID = 1,      // the source is no grammar, schema or expression of its kind
    NG_UNSUPPORTED = 2,  // it is one, but asks for what cannot be enforced; the message names it
    NG_LIMIT = 3,        // too large or too complex
    NG_PANIC = 4,        // a defect
    NG_REFUSED = 5,      // ng_accept: the grammar does not allow the token
} ng_code;

typedef enum ng_kind {
    NG_JSON_SCHEMA = 1,  // the source is a JSON schema
    NG_REGEX = 2,        // Rust's regex syntax; the whole output matches it
    NG_LARK = 3,         // llguidance's Lark
} ng_kind;

typedef struct ng_vocab ng_vocab;
typedef struct ng_matcher ng_matcher;

void ng_string_free(char* string);

// A vocabulary: the bytes of token i are bytes[ends[i-1] .. ends[i]). special[i] != 0 marks tokens
// that no text may produce (control tokens); an empty token is never allowed. `eos`: tokens that
// end the output, allowed where the grammar is complete. About 0.1 s for 150k tokens.
int32_t ng_vocab_new(uint32_t count, const uint8_t* bytes, const uint64_t* ends,
                     const uint8_t* special, const uint32_t* eos, size_t eos_count, ng_vocab** out,
                     char** error);
void ng_vocab_free(ng_vocab* vocab);

// Compiles a grammar: 0.2 ms to some 100 ms. The matcher stands at the start.
int32_t ng_compile(const ng_vocab* vocab, int32_t kind, const char* source, size_t size,
                   ng_matcher** out, char** error);
// A copy in the same state; microseconds. The caches are shared.
int32_t ng_matcher_clone(const ng_matcher* matcher, ng_matcher** out, char** error);
void ng_matcher_free(ng_matcher* matcher);

// Bit i of words[i / 32] = token i may come next. `count` is (vocabulary + 31) / 32. At the end of
// the grammar: the end tokens. Tens of microseconds, rarely some milliseconds.
int32_t ng_mask(ng_matcher* matcher, uint32_t* words, size_t count, char** error);
// Advances by `count` tokens. On NG_REFUSED, *accepted tokens were taken.
int32_t ng_accept(ng_matcher* matcher, const uint32_t* tokens, size_t count, size_t* accepted,
                  char** error);
// *stopped = 1: the output is complete and nothing may follow but an end token.
int32_t ng_stopped(const ng_matcher* matcher, int32_t* stopped, char** error);

#ifdef __cplusplus
}
#endif
