//! Messages that quote what somebody else has written.
//!
//! In: a message. Out: the same, bounded, without anything that a terminal obeys.

/// A longer message is cut: it quotes something endless.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// A message that a terminal prints and doesn't obey, whatever it quotes.
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
