//! Text → tokens. Outside of actions there is only text; comments and trimmed space are left out.

use crate::error::{Fault, Outcome};

/// A token with its bytes in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Whether there is space before it, in an action.
    pub(crate) follows_space: bool,
}

impl Token {
    pub(crate) fn span(self) -> (u32, u32) {
        (offset(self.start), offset(self.end))
    }
}

/// Texts have at most [`crate::Limits::source_bytes`] bytes, and larger limits do not help.
pub(crate) fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    LeftDelimiter,
    RightDelimiter,
    /// `=`
    Assign,
    /// `:=`
    Declare,
    Pipe,
    Comma,
    LeftParen,
    RightParen,
    Str,
    Character,
    Number,
    Bool,
    Identifier,
    Keyword(Keyword),
    Dot,
    /// `.name`
    Field,
    /// `$` or `$name`
    Variable,
    /// A character that is valid in no action, except as an error.
    Other,
    /// The lexer has ended with a fault.
    Fault,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyword {
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Nil,
    Range,
    Template,
    With,
}

/// All tokens of a text. The last one is [`Kind::End`] or [`Kind::Fault`].
pub(crate) struct Tokens {
    tokens: Vec<Token>,
    fault: Option<Fault>,
}

/// Usual length of a token.
const TOKEN_LEN: usize = 4;

/// Reads the tokens of a text.
pub(crate) fn tokens(text: &str, left: &str, right: &str) -> Tokens {
    let mut lexer = Lexer::new(text, left, right);
    let mut tokens = Vec::with_capacity(text.len() / TOKEN_LEN);
    loop {
        match lexer.next() {
            Ok(token) => {
                tokens.push(token);
                if token.kind == Kind::End {
                    return Tokens { tokens, fault: None };
                }
            }
            Err(fault) => {
                tokens.push(lexer.token(Kind::Fault, lexer.at));
                return Tokens { tokens, fault: Some(fault) };
            }
        }
    }
}

impl Tokens {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the token at an index; beyond the last one, that one again.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Token {
        self.tokens[at.min(self.tokens.len() - 1)]
    }

    /// The fault of the last token, [`Kind::Fault`].
    #[cold]
    pub(crate) fn fault(&self) -> Fault {
        self.fault.clone().unwrap_or_else(|| Fault::new("the text ends early"))
    }
}

/// The state of the lexer.
struct Lexer<'t> {
    text: &'t str,
    left: &'t str,
    right: &'t str,
    at: usize,
    is_inside: bool,
    parens: usize,
}

impl<'t> Lexer<'t> {
    fn new(text: &'t str, left: &'t str, right: &'t str) -> Self {
        Self { text, left, right, at: 0, is_inside: false, parens: 0 }
    }

    fn next(&mut self) -> Outcome<Token> {
        if self.is_inside { self.next_inside() } else { self.next_outside() }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    #[inline]
    fn bytes(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn token(&self, kind: Kind, start: usize) -> Token {
        Token { kind, start, end: self.at, follows_space: false }
    }

    fn fault(&self, start: usize, message: impl Into<String>) -> Fault {
        let span = (offset(start), offset(self.at.max(start + 1)));
        Fault::syntax(message, span)
    }

    fn next_outside(&mut self) -> Outcome<Token> {
        loop {
            let start = self.at;
            let Some(length) = find(self.rest(), self.left) else {
                self.at = self.text.len();
                return Ok(self.token(if start < self.at { Kind::Text } else { Kind::End }, start));
            };
            let delimiter = start + length;
            let after = delimiter + self.left.len();
            let trims = trims_left(&self.text[after..]);
            let text = &self.text[start..delimiter];
            let kept = if trims { text.trim_end_matches(is_space).len() } else { length };
            if kept > 0 {
                self.at = delimiter;
                return Ok(Token { end: start + kept, ..self.token(Kind::Text, start) });
            }
            self.at = after + if trims { 2 } else { 0 };
            if self.rest().starts_with("/*") {
                self.skip_comment(delimiter)?;
                continue;
            }
            self.is_inside = true;
            self.parens = 0;
            return Ok(Token { end: after, ..self.token(Kind::LeftDelimiter, delimiter) });
        }
    }

    fn skip_comment(&mut self, start: usize) -> Outcome<()> {
        let Some(length) = self.rest().get(2..).and_then(|rest| rest.find("*/")) else {
            return Err(self.fault(start, "unclosed comment"));
        };
        self.at += 2 + length + 2;
        match self.right_delimiter() {
            Some(delimiter) => self.leave(delimiter),
            None => return Err(self.fault(start, "comment ends before closing delimiter")),
        }
        Ok(())
    }

    /// Which right delimiter is next.
    #[inline]
    fn right_delimiter(&self) -> Option<RightDelimiter> {
        match self.bytes() {
            [b' ' | b'\t' | b'\r' | b'\n', b'-', marked @ ..] if begins(marked, self.right) => {
                Some(RightDelimiter::Trimming)
            }
            rest => begins(rest, self.right).then_some(RightDelimiter::Plain),
        }
    }

    /// Passes the right delimiter.
    fn leave(&mut self, delimiter: RightDelimiter) {
        self.at += delimiter.mark_len() + self.right.len();
        self.is_inside = false;
        if delimiter == RightDelimiter::Trimming {
            self.at += self.rest().len() - self.rest().trim_start_matches(is_space).len();
        }
    }

    fn next_inside(&mut self) -> Outcome<Token> {
        let mut follows_space = false;
        loop {
            if let Some(delimiter) = self.right_delimiter() {
                return self.end_of_action(delimiter).map(|token| Token { follows_space, ..token });
            }
            if !matches!(self.bytes().first(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
                break;
            }
            self.at += 1;
            follows_space = true;
        }
        let start = self.at;
        let kind = self.kind()?;
        Ok(Token { follows_space, ..self.token(kind, start) })
    }

    fn end_of_action(&mut self, delimiter: RightDelimiter) -> Outcome<Token> {
        let start = self.at;
        if self.parens > 0 {
            return Err(self.fault(start, "unclosed left paren"));
        }
        let end = start + delimiter.mark_len() + self.right.len();
        self.leave(delimiter);
        Ok(Token { end, ..self.token(Kind::RightDelimiter, start) })
    }

    /// Reads a token of an action.
    fn kind(&mut self) -> Outcome<Kind> {
        let start = self.at;
        let Some(first) = self.bytes().first() else {
            return Err(self.fault(start, "unclosed action"));
        };
        self.at += 1;
        Ok(match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word(start)?,
            b'=' => Kind::Assign,
            b':' if self.bytes().starts_with(b"=") => {
                self.at += 1;
                Kind::Declare
            }
            b':' => return Err(self.fault(start, "expected :=")),
            b'|' => Kind::Pipe,
            b',' => Kind::Comma,
            b'"' => self.quoted(start, b'"', "quoted string")?,
            b'\'' => self.quoted(start, b'\'', "character constant")?,
            b'`' => match self.rest().find('`') {
                Some(length) => {
                    self.at += length + 1;
                    Kind::Str
                }
                None => return Err(self.fault(start, "unterminated raw quoted string")),
            },
            b'$' => self.name(Kind::Variable, Kind::Variable)?,
            b'.' if !self.bytes().first().is_some_and(u8::is_ascii_digit) => {
                self.name(Kind::Dot, Kind::Field)?
            }
            b'.' | b'+' | b'-' | b'0'..=b'9' => self.number(start)?,
            b'(' => {
                self.parens += 1;
                Kind::LeftParen
            }
            b')' => {
                let Some(parens) = self.parens.checked_sub(1) else {
                    return Err(self.fault(start, "unexpected right paren"));
                };
                self.parens = parens;
                Kind::RightParen
            }
            _ if first.is_ascii_graphic() => Kind::Other,
            _ => self.other(start)?,
        })
    }

    /// Reads a word that begins with any letter.
    fn other(&mut self, start: usize) -> Outcome<Kind> {
        let first = self.text[start..].chars().next().unwrap_or_default();
        self.at = start + first.len_utf8();
        if is_alphanumeric(first) {
            return self.word(start);
        }
        Err(self.fault(start, format!("unrecognized character in action: {first:?}")))
    }

    fn quoted(&mut self, start: usize, quote: u8, what: &str) -> Outcome<Kind> {
        let mut is_escaped = false;
        for byte in self.bytes() {
            if *byte == b'\n' {
                break;
            }
            self.at += 1;
            if is_escaped {
                is_escaped = false;
            } else if *byte == quote {
                return Ok(if quote == b'"' { Kind::Str } else { Kind::Character });
            } else {
                is_escaped = *byte == b'\\';
            }
        }
        Err(self.fault(start, format!("unterminated {what}")))
    }

    /// Reads the name after `.` or `$`.
    fn name(&mut self, without: Kind, with: Kind) -> Outcome<Kind> {
        if self.is_terminated() {
            return Ok(without);
        }
        self.skip_alphanumeric();
        self.terminated(with)
    }

    fn word(&mut self, start: usize) -> Outcome<Kind> {
        self.skip_alphanumeric();
        self.terminated(match &self.text.as_bytes()[start..self.at] {
            b"true" | b"false" => Kind::Bool,
            b"block" => Kind::Keyword(Keyword::Block),
            b"break" => Kind::Keyword(Keyword::Break),
            b"continue" => Kind::Keyword(Keyword::Continue),
            b"define" => Kind::Keyword(Keyword::Define),
            b"else" => Kind::Keyword(Keyword::Else),
            b"end" => Kind::Keyword(Keyword::End),
            b"if" => Kind::Keyword(Keyword::If),
            b"nil" => Kind::Keyword(Keyword::Nil),
            b"range" => Kind::Keyword(Keyword::Range),
            b"template" => Kind::Keyword(Keyword::Template),
            b"with" => Kind::Keyword(Keyword::With),
            _ => Kind::Identifier,
        })
    }

    fn skip_alphanumeric(&mut self) {
        let rest = self.bytes();
        self.at += rest.iter().position(|byte| !IS_OF_NAME[usize::from(*byte)]).unwrap_or(rest.len());
        if self.bytes().first().is_some_and(|byte| !byte.is_ascii()) {
            self.at = self.text.len() - self.rest().trim_start_matches(is_alphanumeric).len();
        }
    }

    fn terminated(&self, kind: Kind) -> Outcome<Kind> {
        if self.is_terminated() {
            return Ok(kind);
        }
        let next = self.rest().chars().next().unwrap_or_default();
        Err(self.fault(self.at, format!("bad character {next:?} after a name")))
    }

    fn is_terminated(&self) -> bool {
        match self.bytes() {
            [] | [b' ' | b'\t' | b'\r' | b'\n' | b'.' | b',' | b'|' | b':' | b')' | b'(', ..] => true,
            rest => begins(rest, self.right),
        }
    }

    /// Reads what may be a number; the parser checks it.
    fn number(&mut self, start: usize) -> Outcome<Kind> {
        self.at = start;
        self.skip_one(&['+', '-']);
        let unsigned = self.rest().as_bytes();
        let is_hex = matches!(unsigned, [b'0', b'x' | b'X', ..]);
        let has_prefix = is_hex || matches!(unsigned, [b'0', b'o' | b'O' | b'b' | b'B', ..]);
        self.at += if has_prefix { 2 } else { 0 };
        let is_digit =
            |char: char| char == '_' || if is_hex { char.is_ascii_hexdigit() } else { char.is_ascii_digit() };
        self.skip_while(is_digit);
        if self.skip_one(&['.']) {
            self.skip_while(is_digit);
        }
        let exponent: &[char] = if is_hex { &['p', 'P'] } else { &['e', 'E'] };
        if (is_hex || !has_prefix) && self.skip_one(exponent) {
            self.skip_one(&['+', '-']);
            self.skip_while(|char| char == '_' || char.is_ascii_digit());
        }
        self.skip_one(&['i']);
        if self.rest().starts_with(is_alphanumeric) || self.rest().starts_with(['+', '-']) {
            return Err(self.fault(start, format!("bad number syntax: {:?}", &self.text[start..self.at])));
        }
        Ok(Kind::Number)
    }

    fn skip_one(&mut self, chars: &[char]) -> bool {
        let found = self.rest().starts_with(chars);
        self.at += usize::from(found);
        found
    }

    fn skip_while(&mut self, is_part: impl Fn(char) -> bool) {
        self.at = self.text.len() - self.rest().trim_start_matches(is_part).len();
    }
}

/// Whether a delimiter is next. The first byte decides nearly always.
#[inline(always)]
fn begins(bytes: &[u8], delimiter: &str) -> bool {
    bytes.first() == delimiter.as_bytes().first() && bytes.starts_with(delimiter.as_bytes())
}

/// Longest delimiter for which a simple search is used, so that its time stays proportional to the text.
const SHORT_BYTES: usize = 8;

/// Finds a delimiter. The search of the standard library prepares more than a text between two delimiters takes.
fn find(text: &str, delimiter: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (Some(first), true) = (delimiter.as_bytes().first(), delimiter.len() <= SHORT_BYTES) else {
        return text.find(delimiter);
    };
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| byte == first) {
        if begins(&bytes[from + at..], delimiter) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// A right delimiter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RightDelimiter {
    Plain,
    /// With a mark before it, it trims the space after it.
    Trimming,
}

impl RightDelimiter {
    /// The length of the mark.
    fn mark_len(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Trimming => 2,
        }
    }
}

fn trims_left(after: &str) -> bool {
    after.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space))
}

pub(crate) fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\r' | '\n')
}

/// For each byte, whether it is a letter, digit or underscore of ASCII.
const IS_OF_NAME: [bool; 256] = {
    let mut is_of_name = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        is_of_name[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_';
        byte += 1;
    }
    is_of_name
};

fn is_alphanumeric(char: char) -> bool {
    char == '_' || char.is_alphabetic() || char.is_numeric()
}
