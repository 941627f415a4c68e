//! The text of a caught panic. In: a panic payload. Out: a bounded message.

use std::any::Any;

/// A longer message would only enlarge a record.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The panic's message, cut to at most 1,024 bytes.
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
