//! DeepSeek V4 and V4.1 behind the C ABI of ../include/nereid_recipe.h, which says what each call promises. Here: conversion at
//! the border, panics caught, and deepseek-recipe's asynchronous stream driven by hand, one push at a time. Hugging Face's
//! tokenizers are in tokenizer.rs.

#[path = "../../guidance/src/border.rs"]
mod border;
mod tokenizer;

use std::collections::VecDeque;
use std::ffi::CString;
use std::future::Future;
use std::os::raw::c_char;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use border::{bytes, call, Failure};
use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::request::{ConversationRequest, ConversionError, ConversionOptions, ModelVersion, ProtocolRequest};
use deepseek_recipe::stream::{ChunkGenerator, InferenceChunk, InferenceFinishReason, OutputChunk, StreamError, StreamProcessor};
use deepseek_recipe_encoding::v4::dsv4::DeepseekV4Encoding;
use deepseek_recipe_encoding::v4::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::PromptEncoding;
use serde_json::{json, Value};
use tokio_stream::Stream;

const OK: i32 = 0;
const INVALID: i32 = 1;
const PANIC: i32 = 4;

#[no_mangle]
pub unsafe extern "C" fn nr_string_free(string: *mut c_char) {
    // SAFETY: the header demands a string that a call of ours gave, or null.
    unsafe { border::free_string(string) }
}

fn text<'a>(data: *const c_char, size: usize) -> Result<&'a str, Failure> {
    // SAFETY: the header demands `size` bytes.
    std::str::from_utf8(unsafe { bytes(data.cast::<u8>(), size) }).map_err(|_| Failure::new(INVALID, "not UTF-8"))
}

/// JSON escapes NUL, so nothing is cut.
fn give(out: *mut *mut c_char, value: &Value) -> Result<(), Failure> {
    let string = CString::new(value.to_string()).map_err(Failure::internal)?;
    // SAFETY: the header demands a place for one pointer.
    unsafe { *out = string.into_raw() };
    Ok(())
}

fn convert(request: &str) -> Result<ConversationRequest, Failure> {
    let request: ChatCompletionRequest = serde_json::from_str(request).map_err(|e| Failure::new(INVALID, e.to_string()))?;
    request.convert(ConversionOptions::new()).map_err(|e| match e {
        ConversionError::BadRequest { detail } => Failure::new(INVALID, detail),
        ConversionError::Internal { detail } => Failure::internal(detail),
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_render(request: *const c_char, size: usize, out: *mut *mut c_char, error: *mut *mut c_char) -> i32 {
    call(error, || {
        let converted = convert(text(request, size)?)?;
        let rendered = match converted.model_version {
            ModelVersion::DeepseekV4Pro => DeepseekV4Encoding::new().render_conversation(&converted.conversation),
            _ => DeepseekV41Encoding::new().render_conversation(&converted.conversation),
        };
        let special: Vec<Value> = rendered.special_ranges.iter().map(|r| json!([r.start, r.end])).collect();
        give(
            out,
            &json!({
                "prompt": rendered.prompt,
                "special": special,
                "thinking": converted.conversation.thinking_mode,
                "in_calls": converted.parsing_options.starts_in_tool_calls,
            }),
        )
    })
}

/// What has been pushed and not been read.
#[derive(Default)]
struct Inbox {
    chunks: VecDeque<InferenceChunk>,
    closed: bool,
}

struct Source(Arc<Mutex<Inbox>>);

impl Stream for Source {
    type Item = InferenceChunk;
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<InferenceChunk>> {
        let mut inbox = self.0.lock().unwrap_or_else(|e| e.into_inner());
        match inbox.chunks.pop_front() {
            Some(chunk) => Poll::Ready(Some(chunk)),
            None if inbox.closed => Poll::Ready(None),
            None => Poll::Pending, // the next push polls again
        }
    }
}

struct Events;

impl ChunkGenerator for Events {
    type Chunk = OutputChunk;
    fn generate(&mut self, chunk: OutputChunk) -> impl Future<Output = Vec<OutputChunk>> + Send {
        std::future::ready(vec![chunk])
    }
}

pub struct Parser {
    inbox: Arc<Mutex<Inbox>>,
    stream: Pin<Box<dyn Stream<Item = Result<OutputChunk, StreamError>> + Send>>,
    ended: bool,
}

impl Parser {
    fn new(request: &str) -> Result<Parser, Failure> {
        let mut options = convert(request)?.parsing_options;
        // Stop strings are cut before the parser, JSON is enforced by a grammar.
        options.stop_sequences.clear();
        options.parse_json_output = false;
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let stream = StreamProcessor::new(Events, options).into_protocol_stream(Source(inbox.clone()));
        Ok(Parser { inbox, stream: Box::pin(stream), ended: false })
    }

    fn feed(&mut self, chunk: Option<InferenceChunk>) -> Result<Value, Failure> {
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(|e| e.into_inner());
            match chunk {
                Some(chunk) => inbox.chunks.push_back(chunk),
                None => {
                    inbox.chunks.push_back(InferenceChunk::Finish { finish_reason: InferenceFinishReason::Stop });
                    inbox.closed = true;
                }
            }
        }
        let mut events = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while !self.ended {
            match self.stream.as_mut().poll_next(&mut context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Err(e))) => return Err(Failure::internal(e)),
                Poll::Ready(Some(Ok(chunk))) => match chunk {
                    OutputChunk::Content { content, .. } => events.push(json!(["content", content])),
                    OutputChunk::Reasoning { content, .. } => events.push(json!(["reasoning", content])),
                    OutputChunk::ToolCallNamed { tool_name } => events.push(json!(["name", tool_name])),
                    OutputChunk::ToolCallArgumentsDelta { arguments } => events.push(json!(["arguments", arguments])),
                    OutputChunk::Start { .. } | OutputChunk::ToolCallBegin | OutputChunk::Finish { .. } => {}
                },
            }
        }
        Ok(Value::Array(events))
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_parser_new(request: *const c_char, size: usize, out: *mut *mut Parser, error: *mut *mut c_char) -> i32 {
    call(error, || {
        let parser = Parser::new(text(request, size)?)?;
        // SAFETY: the header demands a place for one pointer.
        unsafe { *out = Box::into_raw(Box::new(parser)) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_parser_push(
    parser: *mut Parser,
    data: *const c_char,
    size: usize,
    out: *mut *mut c_char,
    error: *mut *mut c_char,
) -> i32 {
    call(error, || {
        let content = text(data, size)?.to_string();
        // SAFETY: the header demands a live parser.
        let parser = unsafe { &mut *parser };
        give(out, &parser.feed(Some(InferenceChunk::Text { content, token_count: 0 }))?)
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_parser_finish(parser: *mut Parser, out: *mut *mut c_char, error: *mut *mut c_char) -> i32 {
    call(error, || {
        // SAFETY: the header demands a live parser.
        let parser = unsafe { &mut *parser };
        give(out, &parser.feed(None)?)
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn nr_parser_free(parser: *mut Parser) {
    if !parser.is_null() {
        // SAFETY: made by nr_parser_new.
        drop(unsafe { Box::from_raw(parser) });
    }
}
