//! The text of a caught panic. In goes a panic payload, out a bounded message; it knows nothing of who panicked.

use std::any::Any;

/// A longer message would only bloat a record.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The message a panic was raised with, cut to at most 1,024 bytes.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message");
    let mut end = text.len().min(MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
