//! Scans HCL before it is parsed.
//!
//! In: text. Out: whether it is HCL, whether its size exceeds the parser's limits (the parser compares every
//! key of an object with every other), and hints for common syntax errors.

/// Maximum entries of an object or list, or lines of a body: the parser's time grows with their square.
const ENTRIES_MAX: usize = 2_000;
/// Maximum nesting of brackets.
const DEPTH_MAX: usize = 1_000;

/// Refuses texts on which the parser would take too long.
///
/// # Errors
/// The offset and a message.
pub(super) fn bounds(text: &str) -> Result<(), (usize, String)> {
    let mut scan = Scan::new(text.as_bytes());
    scan.run()
}

/// Returns whether a text begins with a block of a job file.
pub(super) fn begins_with_a_block(bytes: &[u8]) -> bool {
    let mut scan = Scan::new(bytes);
    scan.blank();
    let rest = bytes.get(scan.at..).unwrap_or_default();
    ["job", "variable", "variables", "locals"].iter().any(|word| {
        rest.strip_prefix(word.as_bytes()).is_some_and(|rest| {
            let rest = rest.trim_ascii_start();
            rest.starts_with(b"\"") || rest.starts_with(b"{")
        })
    })
}

/// Returns a hint for a syntax error whose parser message doesn't name the remedy.
pub(super) fn remedy(text: &str, offset: usize) -> Option<&'static str> {
    let rest = text.get(offset..)?;
    let line = rest.lines().next().unwrap_or_default();
    let is_opener = |line: &str| line.trim_end().ends_with('{');
    let before = text.get(..offset)?.lines().last().unwrap_or_default();
    let is_interpolation = before
        .rfind("${")
        .is_some_and(|begin| !before[begin..].contains('}') && !before[..begin].ends_with('$'));
    if is_interpolation {
        Some("write `$${` for a literal `${`, for instance that of a shell: `$${NAME:-default}`")
    } else if line.starts_with(',') {
        Some("the attributes of a block are separated by lines: remove the comma")
    } else if rest.trim_start().is_empty() {
        Some("a `{` is not closed")
    } else if is_quoted_name(line) {
        Some("a quoted name is only allowed in an object: write `meta = { \"a-b\" = … }`")
    } else if is_opener(before) || line.contains('{') {
        Some(
            "a block on one line may contain at most one attribute; put further ones, and blocks, on new lines",
        )
    } else {
        None
    }
}

/// Whether the line begins with a name in quotes that is given a value.
fn is_quoted_name(line: &str) -> bool {
    let after = line.strip_prefix('"').and_then(|line| line.split_once('"'));
    after.is_some_and(|(_, rest)| rest.trim_start().starts_with('='))
}

/// A scanner that recognises only brackets, strings, heredocs and comments.
pub(super) struct Scan<'t> {
    bytes: &'t [u8],
    pub(super) at: usize,
    pub(super) open: Vec<Open>,
}

/// An open bracket or string at the current offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    /// A bracket, with the number of entries in it so far.
    Bracket(usize),
    /// A quoted string or template.
    Quote,
}

impl<'t> Scan<'t> {
    pub(super) fn new(bytes: &'t [u8]) -> Self {
        Self { bytes, at: 0, open: Vec::new() }
    }

    fn run(&mut self) -> Result<(), (usize, String)> {
        while self.step()? {}
        Ok(())
    }

    /// Moves beyond the next character, comment or heredoc; returns false at the end.
    pub(super) fn step(&mut self) -> Result<bool, (usize, String)> {
        let Some(byte) = self.bytes.get(self.at).copied() else { return Ok(false) };
        if self.open.len() > DEPTH_MAX {
            return Err((self.at, "is nested too deeply".to_owned()));
        }
        if self.open.last() == Some(&Open::Quote) {
            self.quoted(byte);
        } else {
            self.plain(byte)?;
        }
        Ok(true)
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
            // A string ends at the end of its line at the latest.
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
                            format!("one pair of brackets contains more than {ENTRIES_MAX} lines or entries");
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

    /// Skips whitespace and comments.
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

    /// Skips a comment if one begins here, but not the end of its line.
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

    /// Skips `<<EOF` and the lines up to `EOF`, or only `<<` if no heredoc begins here.
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
