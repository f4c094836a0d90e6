//! Grammars enforced during decoding: llguidance behind the C ABI of ../include/nereid_guidance.h, which says what each call
//! promises. Here: conversion at the border, panics caught, errors sorted into codes, and what llguidance leaves to its caller
//! (bounded white space, annotations, where in a schema an unsupported keyword stands). Images are in image.rs: this is the one
//! Rust library that the program links, and two would bring std twice.

mod border;
mod image;
mod quote;
mod schema;

use std::os::raw::c_char;
use std::sync::Arc;

use border::{bytes, call, Failure};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

const OK: i32 = 0;
const INVALID: i32 = 1;
const UNSUPPORTED: i32 = 2;
const LIMIT: i32 = 3;
const PANIC: i32 = 4;
const REFUSED: i32 = 5;

const JSON_SCHEMA: i32 = 1;
const REGEX: i32 = 2;
const LARK: i32 = 3;

/// A source beyond this is refused before anything parses it.
const MAX_SOURCE: usize = 1 << 20;
/// Parentheses of Lark and of expressions: the parsers descend once for each.
const MAX_NESTING: usize = 200;

pub struct Vocab {
    factory: ParserFactory,
    size: usize,
}

pub struct Guide {
    matcher: Matcher,
    size: usize,
}

#[no_mangle]
pub unsafe extern "C" fn ng_string_free(string: *mut c_char) {
    // SAFETY: the header demands a string that a call of ours gave, or null.
    unsafe { border::free_string(string) }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_vocab_new(
    count: u32,
    token_bytes: *const u8,
    ends: *const u64,
    special: *const u8,
    eos: *const u32,
    eos_count: usize,
    out: *mut *mut Vocab,
    error: *mut *mut c_char,
) -> i32 {
    // SAFETY: the header demands arrays of these lengths.
    call(error, || unsafe {
        let ends = bytes(ends, count as usize);
        let special = bytes(special, count as usize);
        let all = bytes(token_bytes, ends.last().copied().unwrap_or(0) as usize);
        let eos = bytes(eos, eos_count);
        let vocab = new_vocab(all, ends, special, eos)?;
        *out = Box::into_raw(Box::new(vocab));
        Ok(())
    })
}

fn new_vocab(all: &[u8], ends: &[u64], special: &[u8], eos: &[u32]) -> Result<Vocab, Failure> {
    if eos.is_empty() || eos.iter().any(|&id| id as usize >= ends.len()) {
        return Err(Failure::new(INVALID, "a vocabulary without an end token inside it"));
    }
    let mut words = Vec::with_capacity(ends.len());
    let mut begin = 0usize;
    for (&end, &special) in ends.iter().zip(special) {
        let end = end as usize;
        let text = all.get(begin..end).ok_or_else(|| Failure::new(INVALID, "token ends are not in order"))?;
        begin = end;
        let mut word = Vec::with_capacity(text.len() + 1);
        if special != 0 {
            // llguidance's mark of tokens that text never produces.
            word.push(TokTrie::SPECIAL_TOKEN_MARKER);
        }
        word.extend_from_slice(text);
        words.push(word);
    }
    let trie = TokTrie::from(&TokRxInfo::new(ends.len() as u32, eos[0]), &words).with_eos_tokens(eos);
    // Greedy tokenisation serves for nothing that reaches the output: tokens are not forced.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(Failure::internal)?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_lexer_states: 20_000, // 1-2 kB each: bounds what one grammar may cost
        verbose_errors: false,    // errors never quote the output
        ..ParserLimits::default()
    };
    Ok(Vocab { factory, size: ends.len() })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_vocab_free(vocab: *mut Vocab) {
    if !vocab.is_null() {
        // SAFETY: made by ng_vocab_new.
        drop(unsafe { Box::from_raw(vocab) });
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_compile(
    vocab: *const Vocab,
    kind: i32,
    source: *const c_char,
    size: usize,
    out: *mut *mut Guide,
    error: *mut *mut c_char,
) -> i32 {
    // SAFETY: the header demands a live vocabulary and `size` bytes.
    call(error, || unsafe {
        let source = std::str::from_utf8(bytes(source.cast::<u8>(), size))
            .map_err(|_| Failure::new(INVALID, "the grammar is not UTF-8"))?;
        let guide = compile(&*vocab, kind, source)?;
        *out = Box::into_raw(Box::new(guide));
        Ok(())
    })
}

fn compile(vocab: &Vocab, kind: i32, source: &str) -> Result<Guide, Failure> {
    if source.len() > MAX_SOURCE {
        return Err(Failure::new(LIMIT, format!("the grammar has {} bytes; at most {MAX_SOURCE} are taken", source.len())));
    }
    let mut inputs = Vec::new();
    let (grammar, schemas) = match kind {
        JSON_SCHEMA => {
            let schema = schema::prepare(source)?;
            (TopLevelGrammar::from_json_schema(schema.clone()), vec![schema])
        }
        REGEX => {
            check_nesting(source)?;
            (TopLevelGrammar::from_regex(source), vec![])
        }
        LARK => {
            check_nesting(source)?;
            let (lark, schemas) = schema::prepare_lark(source, &mut inputs)?;
            (TopLevelGrammar::from_lark(lark), schemas)
        }
        _ => return Err(Failure::new(INVALID, format!("no such kind of grammar: {kind}"))),
    };
    let made = vocab.factory.create_parser(grammar).map_err(|e| sort_error(&format!("{e:#}"), kind, &schemas));
    // An error inside a tool's own grammar is told in that grammar's lines.
    let parser = made.or_else(|whole| inputs.iter().try_for_each(|input| check_input(vocab, input)).and(Err(whole)))?;
    let mut matcher = Matcher::new(Ok(parser));
    // An error of the first mask is one of the grammar, and known here rather than mid-answer.
    matcher.compute_mask_or_eos().map_err(|e| sort_error(&format!("{e:#}"), kind, &schemas))?;
    Ok(Guide { matcher, size: vocab.size })
}

fn check_input(vocab: &Vocab, input: &schema::Input) -> Result<(), Failure> {
    let grammar = match input.syntax.as_str() {
        "regex" => TopLevelGrammar::from_regex(&input.definition),
        _ => TopLevelGrammar::from_lark(input.definition.clone()),
    };
    let made = vocab.factory.create_parser(grammar);
    made.map(|_| ()).map_err(|e| sort_error(&format!("{e:#}"), LARK, &[]).within(&input.owner()))
}

fn check_nesting(source: &str) -> Result<(), Failure> {
    let mut depth = 0usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth > MAX_NESTING {
            return Err(Failure::new(LIMIT, format!("the grammar is nested deeper than {MAX_NESTING}")));
        }
    }
    Ok(())
}

/// llguidance has one kind of error; its words tell them apart.
fn sort_error(message: &str, kind: i32, schemas: &[serde_json::Value]) -> Failure {
    let first = message.lines().next().unwrap_or(message).trim();
    if message.contains("panic:") {
        return Failure::new(PANIC, first);
    }
    let limit = ["too complex", "too large", "too big", "fuel", "limit", "too many", "exceed", "stack overflow"];
    if limit.iter().any(|word| message.to_lowercase().contains(word)) {
        return Failure::new(LIMIT, first);
    }
    if let Some(named) = schema::name_unsupported(message, schemas) {
        return Failure::new(UNSUPPORTED, named);
    }
    if kind != JSON_SCHEMA {
        return Failure::new(INVALID, message.trim());
    }
    if message.contains("regex parse error") {
        let why = message.lines().rev().find_map(|line| line.trim().strip_prefix("error: ")).unwrap_or(first);
        return Failure::new(UNSUPPORTED, format!("a \"pattern\" of the schema cannot be enforced: {why}"));
    }
    if message.contains("retrieving it failed") {
        return Failure::new(UNSUPPORTED, format!("a \"$ref\" to another document is not supported ({first})"));
    }
    let broken = ["must be", "Unsatisfiable", "invalid type", "Unknown type", "Invalid type", "expected", "not found", "does not exist"];
    let code = if broken.iter().any(|word| message.contains(word)) { INVALID } else { UNSUPPORTED };
    Failure::new(code, first)
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_matcher_clone(matcher: *const Guide, out: *mut *mut Guide, error: *mut *mut c_char) -> i32 {
    // SAFETY: the header demands a live matcher.
    call(error, || unsafe {
        let from = &*matcher;
        let copy = Guide { matcher: from.matcher.clone(), size: from.size };
        *out = Box::into_raw(Box::new(copy));
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_matcher_free(matcher: *mut Guide) {
    if !matcher.is_null() {
        // SAFETY: made by ng_compile or ng_matcher_clone.
        drop(unsafe { Box::from_raw(matcher) });
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_mask(matcher: *mut Guide, words: *mut u32, count: usize, error: *mut *mut c_char) -> i32 {
    // SAFETY: the header demands a live matcher and room for `count` words.
    call(error, || unsafe {
        let guide = &mut *matcher;
        if count != guide.size.div_ceil(32) {
            return Err(Failure::new(INVALID, "a mask of the wrong size"));
        }
        let mask = guide.matcher.compute_mask_or_eos().map_err(|e| sort_error(&format!("{e:#}"), LARK, &[]))?;
        let from = &mask.as_slice()[..count.min(mask.as_slice().len())];
        let to = std::slice::from_raw_parts_mut(words, count);
        to[..from.len()].copy_from_slice(from);
        to[from.len()..].fill(0);
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_accept(
    matcher: *mut Guide,
    tokens: *const u32,
    count: usize,
    accepted: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    // SAFETY: the header demands a live matcher and `count` tokens.
    call(error, || unsafe {
        let guide = &mut *matcher;
        let tokens = bytes(tokens, count);
        let taken = guide.matcher.try_consume_tokens(tokens).map_err(|e| sort_error(&format!("{e:#}"), LARK, &[]))?;
        *accepted = taken;
        if taken < count {
            return Err(Failure::new(REFUSED, format!("token {} is not allowed here", tokens[taken])));
        }
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ng_stopped(matcher: *const Guide, stopped: *mut i32, error: *mut *mut c_char) -> i32 {
    // SAFETY: the header demands a live matcher.
    call(error, || unsafe {
        *stopped = i32::from((*matcher).matcher.is_stopped());
        Ok(())
    })
}
