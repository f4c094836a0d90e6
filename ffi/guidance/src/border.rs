//! The border to C: slices from pointers, owned error strings, panics caught.

use std::ffi::CString;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::{OK, PANIC};

pub struct Failure {
    code: i32,
    message: String,
}

impl Failure {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
    /// Says whose error it is.
    pub fn within(self, owner: &str) -> Self {
        Failure { message: format!("{owner}: {}", self.message), ..self }
    }
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Failure::new(PANIC, error.to_string())
    }
}

/// Runs `body`; writes its error, or a panic's message, to `error`.
pub fn call(error: *mut *mut c_char, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_string())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "panic".to_string());
            Failure::new(PANIC, text)
        }
    };
    if !error.is_null() {
        let clean: Vec<u8> = failure.message.bytes().filter(|&b| b != 0).collect();
        let text = CString::new(clean).unwrap_or_default();
        // SAFETY: the caller gave a place for one pointer.
        unsafe { *error = text.into_raw() };
    }
    failure.code
}

/// # Safety
/// `string` is null or came from `call`.
pub unsafe fn free_string(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: as demanded.
        drop(unsafe { CString::from_raw(string) });
    }
}

/// # Safety
/// `count` elements at `data`, which may be null when there are none.
pub unsafe fn bytes<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 || data.is_null() {
        return &[];
    }
    // SAFETY: as demanded.
    unsafe { std::slice::from_raw_parts(data, count) }
}
