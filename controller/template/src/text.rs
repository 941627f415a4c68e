//! Strings of the template language: bytes, usually UTF-8.
//!
//! As in Go, a string may contain any bytes, so that a template can write a decoded key store.

use std::{borrow::Cow, cmp::Ordering, fmt, hash, ops::Deref, sync::Arc};

/// Longest text that is kept without memory of its own. A [`Text`] is then as large as a shared one would be with its tag.
const SHORT_MAX: usize = 16;

/// A shared string.
#[derive(Clone)]
pub struct Text(Bytes);

#[derive(Clone)]
enum Bytes {
    /// A character has unused values, by which the other kinds of text and value are distinguished. So all of them move as whole words.
    Short {
        length: char,
        bytes: Short,
    },
    Shared(Arc<[u8]>),
}

/// Aligned like a pointer.
#[derive(Clone)]
#[repr(align(8))]
struct Short([u8; SHORT_MAX]);

impl Text {
    /// Returns the text for functions that work on characters. Each invalid byte becomes one replacement character.
    pub fn lossy(&self) -> Cow<'_, str> {
        match std::str::from_utf8(self) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(lossy(self)),
        }
    }
}

/// Unlike `String::from_utf8_lossy`, each invalid byte is replaced by itself, as Go decodes it.
fn lossy(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

/// Splits off the first character. An invalid byte is a replacement character.
pub(crate) fn split_char(bytes: &[u8]) -> Option<(char, &[u8])> {
    // Only as much as a character may have: each call looks at no more.
    let chunk = bytes[..bytes.len().min(4)].utf8_chunks().next()?;
    match chunk.valid().chars().next() {
        Some(char) => Some((char, &bytes[char.len_utf8()..])),
        None => Some((char::REPLACEMENT_CHARACTER, &bytes[1..])),
    }
}

impl Deref for Text {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { length, bytes } => &bytes.0[..*length as usize],
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl hash::Hash for Text {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// Texts may be secrets.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.len())
    }
}

impl From<&[u8]> for Text {
    #[inline]
    fn from(text: &[u8]) -> Self {
        match u8::try_from(text.len()) {
            Ok(length) if text.len() <= SHORT_MAX => {
                let mut bytes = [0; SHORT_MAX];
                bytes[..text.len()].copy_from_slice(text);
                Self(Bytes::Short { length: char::from(length), bytes: Short(bytes) })
            }
            _ => Self(Bytes::Shared(text.into())),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Vec<u8>> for Text {
    fn from(text: Vec<u8>) -> Self {
        text.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_texts_are_the_same_kind() {
        assert_eq!(size_of::<Text>(), 24);
        for length in [0, 1, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 300] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let text = Text::from(bytes.clone());
            assert_eq!((&*text, &text), (bytes.as_slice(), &Text::from(bytes.as_slice())));
            let mut more = bytes;
            more.push(0);
            assert!(text < Text::from(more));
        }
    }
}
