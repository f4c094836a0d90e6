//! Images, decoded to be sure that they are some: behind the C ABI of ../include/nereid_image.h, over the crate `image` with
//! nothing but PNG, JPEG, GIF and WebP. Sizes are read from the header and held against the caller's limits before any pixel is
//! allocated; pixels are dropped again, since engines decode by themselves.

use std::io::Cursor;
use std::os::raw::c_char;

use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::border::{bytes, call, free_string, Failure};
use crate::{INVALID, LIMIT, UNSUPPORTED};

const PNG: u32 = 1;
const JPEG: u32 = 2;
const GIF: u32 = 3;
const WEBP: u32 = 4;

/// nereid_image.h: ni_limits.
#[repr(C)]
pub struct Bounds {
    max_side: u32,
    max_frames: u32,
    max_pixels: u64,
}

/// nereid_image.h: ni_image.
#[repr(C)]
#[derive(Debug, PartialEq)]
pub struct Decoded {
    format: u32,
    width: u32,
    height: u32,
    frames: u32,
}

impl Bounds {
    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.max_image_width = Some(self.max_side);
        limits.max_image_height = Some(self.max_side);
        // A pixel of 16-bit RGBA, and what decoders keep beside the picture.
        limits.max_alloc = Some(self.max_pixels.saturating_mul(8).saturating_add(16 << 20));
        limits
    }
    fn check(&self, width: u32, height: u32, frames: u32) -> Result<(), Failure> {
        if width == 0 || height == 0 {
            return Err(Failure::new(INVALID, "it has no pixels"));
        }
        if width > self.max_side || height > self.max_side {
            return Err(Failure::new(LIMIT, format!("{width} x {height} pixels; a side may have {}", self.max_side)));
        }
        if frames > self.max_frames {
            return Err(Failure::new(LIMIT, format!("more than {} frames", self.max_frames)));
        }
        if u64::from(width) * u64::from(height) * u64::from(frames) > self.max_pixels {
            return Err(Failure::new(LIMIT, format!("{width} x {height} pixels in {frames} frames; {} may be decoded", self.max_pixels)));
        }
        Ok(())
    }
}

fn failure(error: ImageError) -> Failure {
    let code = match error {
        ImageError::Limits(_) => LIMIT,
        ImageError::Unsupported(_) => UNSUPPORTED,
        _ => INVALID,
    };
    Failure::new(code, error.to_string())
}

/// Decodes frame by frame: each counts against the limits before the next is begun.
fn play<'a>(decoder: impl AnimationDecoder<'a>, width: u32, height: u32, bounds: &Bounds) -> Result<u32, Failure> {
    let mut frames = 0;
    for frame in decoder.into_frames() {
        frame.map_err(failure)?;
        frames += 1;
        bounds.check(width, height, frames)?;
    }
    if frames == 0 {
        return Err(Failure::new(INVALID, "it has no frame"));
    }
    Ok(frames)
}

fn decode(data: &[u8], bounds: &Bounds) -> Result<Decoded, Failure> {
    let (format, kind) = match image::guess_format(data) {
        Ok(kind @ ImageFormat::Png) => (PNG, kind),
        Ok(kind @ ImageFormat::Jpeg) => (JPEG, kind),
        Ok(kind @ ImageFormat::Gif) => (GIF, kind),
        Ok(kind @ ImageFormat::WebP) => (WEBP, kind),
        _ => return Err(Failure::new(UNSUPPORTED, "neither PNG, JPEG, GIF nor WebP")),
    };
    let mut reader = ImageReader::with_format(Cursor::new(data), kind);
    reader.limits(bounds.limits());
    let decoder = reader.into_decoder().map_err(failure)?;
    let (width, height) = decoder.dimensions();
    bounds.check(width, height, 1)?;
    let frames = match format {
        GIF => {
            let mut gif = GifDecoder::new(Cursor::new(data)).map_err(failure)?;
            gif.set_limits(bounds.limits()).map_err(failure)?;
            play(gif, width, height, bounds)?
        }
        WEBP => {
            let webp = WebPDecoder::new(Cursor::new(data)).map_err(failure)?;
            if webp.has_animation() {
                play(webp, width, height, bounds)?
            } else {
                DynamicImage::from_decoder(decoder).map(|_| 1).map_err(failure)?
            }
        }
        _ => DynamicImage::from_decoder(decoder).map(|_| 1).map_err(failure)?,
    };
    Ok(Decoded { format, width, height, frames })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ni_string_free(string: *mut c_char) {
    // SAFETY: the header demands a string that a call of ours gave, or null.
    unsafe { free_string(string) }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn ni_decode(data: *const u8, size: usize, limits: *const Bounds, out: *mut Decoded, error: *mut *mut c_char) -> i32 {
    call(error, || {
        // SAFETY: the header demands `size` bytes and live limits.
        let decoded = unsafe { decode(bytes(data, size), &*limits)? };
        // SAFETY: the header demands a place for one.
        unsafe { *out = decoded };
        Ok(())
    })
}
