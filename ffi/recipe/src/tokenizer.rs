//! Any Hugging Face tokenizer.json, in two ways: as `tokenizers` itself encodes (template text, raw prompts), and with the spans
//! that are special tokens named by the caller, so that everything else is plain text whatever it looks like. Both take the same
//! steps (split, normalise, pre-tokenise, model), so without an attack both give the same ids.

use std::collections::HashMap;
use std::ops::Range;
use std::os::raw::c_char;

use tokenizers::tokenizer::normalizer::Range as Span;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token};

use crate::border::{bytes, call, Failure};
use crate::{text, INVALID};

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Tokens that plain text must not become, by id. A vocabulary of whole words or a unigram one may hold them among its
    /// pieces, where the model itself would find them.
    guarded: HashMap<u32, String>,
}

/// White space and plain words in the added vocabulary are no control tokens: where the model finds them by itself, it may.
fn controls(content: &str, special: bool) -> bool {
    !content.trim().is_empty() && (special || content.contains(['<', '>', '[', ']', '{', '}', '|']))
}

impl Tokenizer {
    fn new(json: &str) -> Result<Tokenizer, Failure> {
        // Threads are the caller's business.
        tokenizers::utils::parallelism::set_parallelism(false);
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(|e| Failure::new(INVALID, format!("{e}")))?;
        // What training left in the file; a prompt is never cut or filled up.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(Failure::internal)?;
        let guarded = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| controls(&token.content, token.special))
            .map(|(id, token)| (id, token.content))
            .collect();
        Ok(Tokenizer { inner, guarded })
    }

    fn encode_parsed(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let encoded = self.inner.encode_fast(text, false).map_err(|e| Failure::new(INVALID, e.to_string()))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// `text` cut into marks and plain text, the latter normalised and pre-tokenised.
    fn prepare(&self, text: &str, marks: &[(Range<usize>, u32)]) -> tokenizers::Result<PreTokenizedString> {
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, whole| {
            let mut out: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::with_capacity(2 * marks.len() + 1);
            let slice = |range: Range<usize>| whole.slice(Span::Original(range)).ok_or("a mark is not on characters");
            let mut from = 0;
            for (range, id) in marks {
                if from < range.start {
                    out.push((slice(from..range.start)?, None));
                }
                let value = text[range.clone()].to_string();
                let size = value.len();
                out.push((slice(range.clone())?, Some(vec![Token::new(*id, value, (0, size))])));
                from = range.end;
            }
            if from < text.len() {
                out.push((slice(from..text.len())?, None));
            }
            Ok(out)
        })?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            parts.split(|_, mut part| {
                normalizer.normalize(&mut part)?;
                Ok(std::iter::once(part))
            })?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        Ok(parts)
    }

    fn encode_marked(&self, text: &str, marks: &[(Range<usize>, u32)]) -> tokenizers::Result<Vec<u32>> {
        let mut parts = self.prepare(text, marks)?;
        self.inner.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::None)?;
        let is_guarded = |id: &u32| self.guarded.contains_key(id);
        let found = encoding.get_ids().iter().filter(|id| is_guarded(id)).count();
        if found == marks.iter().filter(|(_, id)| is_guarded(id)).count() {
            return Ok(encoding.get_ids().to_vec());
        }
        // Plain text became a guarded token (or an unknown character did, where the unknown token is one of them).
        let mut parts = self.prepare(text, marks)?;
        parts.tokenize(|plain| {
            let mut out = Vec::new();
            self.tokenize_apart(plain.get(), 0, &mut out)?;
            Ok(out)
        })?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// As the model does it, but text that spells a guarded token is cut inside it and both sides are encoded apart, again and
    /// again. Each call gets a shorter text.
    fn tokenize_apart(&self, text: &str, offset: usize, out: &mut Vec<Token>) -> tokenizers::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let tokens = self.inner.get_model().tokenize(text)?;
        let spelled = |t: &&Token| self.guarded.get(&t.id).is_some_and(|c| text.get(t.offsets.0..t.offsets.1) == Some(c));
        let mut from = 0;
        let mut cut = false;
        for token in tokens.iter().filter(spelled) {
            cut = true;
            let (begin, end) = token.offsets;
            let at = begin + text[begin..].chars().next().map_or(0, char::len_utf8);
            // A token of one character: nothing else can stand for it, so it is left out.
            self.tokenize_apart(&text[from..if at == end { begin } else { at }], offset + from, out)?;
            from = at;
        }
        if cut {
            return self.tokenize_apart(&text[from..], offset + from, out);
        }
        out.extend(tokens.into_iter().map(|t| Token::new(t.id, t.value, (t.offsets.0 + offset, t.offsets.1 + offset))));
        Ok(())
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_tokenizer_new(json: *const c_char, size: usize, out: *mut *mut Tokenizer, error: *mut *mut c_char) -> i32 {
    call(error, || {
        let tokenizer = Tokenizer::new(text(json, size)?)?;
        // SAFETY: the header demands a place for one pointer.
        unsafe { *out = Box::into_raw(Box::new(tokenizer)) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        // SAFETY: made by nr_tokenizer_new.
        drop(unsafe { Box::from_raw(tokenizer) });
    }
}

/// The header demands places for both.
unsafe fn give_ids(encoded: Vec<u32>, ids: *mut *mut u32, count: *mut usize) {
    let boxed = encoded.into_boxed_slice();
    // SAFETY: as demanded.
    unsafe {
        *count = boxed.len();
        *ids = Box::into_raw(boxed).cast::<u32>();
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_tokenizer_parse(
    tokenizer: *const Tokenizer,
    data: *const c_char,
    size: usize,
    ids: *mut *mut u32,
    count: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    call(error, || {
        // SAFETY: the header demands a live tokenizer.
        let encoded = unsafe { &*tokenizer }.encode_parsed(text(data, size)?)?;
        // SAFETY: the header demands places for both.
        unsafe { give_ids(encoded, ids, count) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_tokenizer_encode(
    tokenizer: *const Tokenizer,
    data: *const c_char,
    size: usize,
    marks: *const u64,
    mark_count: usize,
    ids: *mut *mut u32,
    count: *mut usize,
    error: *mut *mut c_char,
) -> i32 {
    call(error, || {
        let prompt = text(data, size)?;
        // SAFETY: the header demands three numbers a mark.
        let numbers = unsafe { bytes(marks, mark_count * 3) };
        let mut special = Vec::with_capacity(mark_count);
        let mut last = 0usize;
        for mark in numbers.chunks_exact(3) {
            let range = mark[0] as usize..mark[1] as usize;
            let fits = last <= range.start && range.start < range.end && prompt.get(range.clone()).is_some();
            if !fits {
                return Err(Failure::new(INVALID, "special ranges are not in order inside the prompt"));
            }
            last = range.end;
            special.push((range, mark[2] as u32));
        }
        // SAFETY: the header demands a live tokenizer.
        let encoded = unsafe { &*tokenizer }.encode_marked(prompt, &special).map_err(|e| Failure::new(INVALID, e.to_string()))?;
        // SAFETY: the header demands places for both.
        unsafe { give_ids(encoded, ids, count) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_ids_free(ids: *mut u32, count: usize) {
    if !ids.is_null() {
        // SAFETY: made by give_ids with this count.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids, count)) });
    }
}
