//! Sanitizes messages that quote untrusted text.
//!
//! In: a message. Out: the same message, bounded and without control characters.

/// Maximum length of a message before it is truncated.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// Escapes control characters and truncates the message.
pub fn printable(message: String) -> String {
    let cut = message.char_indices().nth(MESSAGE_CHARS_MAX).map(|(end, _)| end);
    if cut.is_none() && !message.contains(char::is_control) {
        return message;
    }
    let mut printable = String::with_capacity(message.len().min(MESSAGE_CHARS_MAX));
    for char in message[..cut.unwrap_or(message.len())].chars() {
        if char.is_control() {
            printable.extend(char.escape_default());
        } else {
            printable.push(char);
        }
    }
    if cut.is_some() {
        printable.push('…');
    }
    printable
}
