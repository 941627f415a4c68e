//! A first look at a text of HCL, before it is parsed.
//!
//! In: text. Out: whether it is HCL at all, whether an object in it has more entries than the parser (which compares
//! every key with every other) can bear, and what to do about the usual syntax errors.

/// Entries of one object or list, blocks and attributes of one body: the parser's time grows with their square.
const ENTRIES_MAX: usize = 2_000;
/// More brackets within each other than the parser takes.
const DEPTH_MAX: usize = 1_000;

/// Looks for what would take the parser long.
///
/// # Errors
/// The offset and the sentence.
pub(super) fn bounds(text: &str) -> Result<(), (usize, String)> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0, open: Vec::new() };
    scan.run()
}

/// Whether a text begins with a block of a job file.
pub(super) fn begins_with_a_block(bytes: &[u8]) -> bool {
    let mut scan = Scan { bytes, at: 0, open: Vec::new() };
    scan.blank();
    let rest = bytes.get(scan.at..).unwrap_or_default();
    ["job", "variable", "variables", "locals"].iter().any(|word| {
        rest.strip_prefix(word.as_bytes()).is_some_and(|rest| {
            let rest = rest.trim_ascii_start();
            rest.starts_with(b"\"") || rest.starts_with(b"{")
        })
    })
}

/// What to do about a syntax error, where the parser's sentence doesn't say it.
pub(super) fn remedy(text: &str, offset: usize) -> Option<&'static str> {
    let rest = text.get(offset..)?;
    let line = rest.lines().next().unwrap_or_default();
    let is_opener = |line: &str| line.trim_end().ends_with('{');
    if rest.trim_start().is_empty() {
        Some("look for a `{` that is not closed")
    } else if line.starts_with('"') && line.contains('=') {
        Some("a quoted name stands in an object only: write `meta = { \"a-b\" = … }`")
    } else if is_opener(text.get(..offset)?.lines().last().unwrap_or_default()) || line.contains('{') {
        Some("a block on one line holds at most one attribute; begin a new line for more, and for blocks")
    } else {
        None
    }
}

/// A walk through the text that knows brackets, strings, heredocs and comments, and nothing else.
struct Scan<'t> {
    bytes: &'t [u8],
    at: usize,
    open: Vec<Open>,
}

/// What is open where the walk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// A bracket, and how many entries were in it so far.
    Bracket(usize),
    /// A quoted string, or the template of one.
    Quote,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), (usize, String)> {
        while let Some(byte) = self.bytes.get(self.at).copied() {
            if self.open.len() > DEPTH_MAX {
                return Err((self.at, "is nested too deep".to_owned()));
            }
            if self.open.last() == Some(&Open::Quote) {
                self.quoted(byte);
            } else {
                self.plain(byte)?;
            }
        }
        Ok(())
    }

    fn quoted(&mut self, byte: u8) {
        let rest = &self.bytes[self.at..];
        match byte {
            b'\\' => self.at += 2,
            _ if rest.starts_with(b"$${") || rest.starts_with(b"%%{") => self.at += 3,
            _ if rest.starts_with(b"${") || rest.starts_with(b"%{") => {
                self.open.push(Open::Bracket(0));
                self.at += 2;
            }
            // A string ends with its line at the latest.
            b'"' | b'\n' => {
                self.open.pop();
                self.at += 1;
            }
            _ => self.at += 1,
        }
    }

    fn plain(&mut self, byte: u8) -> Result<(), (usize, String)> {
        if self.comment() {
            return Ok(());
        }
        match byte {
            b'"' => self.open.push(Open::Quote),
            b'{' | b'[' | b'(' => self.open.push(Open::Bracket(0)),
            b'}' | b']' | b')' => {
                self.open.pop();
            }
            b',' | b'\n' => {
                if let Some(Open::Bracket(entries)) = self.open.last_mut() {
                    *entries += 1;
                    if *entries > ENTRIES_MAX {
                        let message =
                            format!("more than {ENTRIES_MAX} lines or entries are in one pair of brackets");
                        return Err((self.at, message));
                    }
                }
            }
            b'<' if self.bytes[self.at..].starts_with(b"<<") => {
                self.heredoc();
                return Ok(());
            }
            _ => {}
        }
        self.at += 1;
        Ok(())
    }

    /// Over blanks and comments.
    fn blank(&mut self) {
        if self.bytes.starts_with("\u{feff}".as_bytes()) {
            self.at = 3;
        }
        while let Some(byte) = self.bytes.get(self.at) {
            if byte.is_ascii_whitespace() {
                self.at += 1;
            } else if !self.comment() {
                break;
            }
        }
    }

    /// Over a comment, if one begins here; its line's end is left.
    fn comment(&mut self) -> bool {
        let rest = &self.bytes[self.at..];
        let length = if rest.starts_with(b"#") || rest.starts_with(b"//") {
            rest.iter().position(|byte| *byte == b'\n')
        } else if rest.starts_with(b"/*") {
            rest.windows(2).skip(2).position(|pair| pair == b"*/").map(|length| length + 4)
        } else {
            return false;
        };
        self.at += length.unwrap_or(rest.len());
        true
    }

    /// Over `<<EOF` and the lines up to `EOF`; over `<<` where it is none.
    fn heredoc(&mut self) {
        let rest = &self.bytes[self.at + 2..];
        let indented = usize::from(rest.starts_with(b"-"));
        let word = &rest[indented..];
        let length = word.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        let name = &word[..length];
        self.at += 2 + indented + length;
        if name.is_empty() {
            return;
        }
        while let Some(end) = self.bytes[self.at..].iter().position(|byte| *byte == b'\n') {
            self.at += end + 1;
            let line = self.bytes[self.at..].split(|byte| *byte == b'\n').next().unwrap_or_default();
            if line.trim_ascii() == name {
                return;
            }
        }
        self.at = self.bytes.len();
    }
}
