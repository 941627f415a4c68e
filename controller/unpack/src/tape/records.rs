//! Extended headers of POSIX: records `LENGTH KEY=VALUE\n` with values of any bytes.

use std::io;

use super::invalid;

/// The begin of keys of extended attributes, as GNU tar, Go and libarchive write them.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
/// The begin of keys of GNU's newer sparse formats.
const SPARSE: &[u8] = b"GNU.sparse.";

/// What an extended header changes in the next entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) target: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) modified_at: Option<(i64, u32)>,
    /// Names and values of extended attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Records {
    /// # Errors
    /// If a record is invalid, or the next entry is a sparse file in a format that is not supported.
    pub(super) fn parse(mut rest: &[u8]) -> io::Result<Self> {
        let mut records = Self::default();
        while !rest.is_empty() {
            let (key, value, behind) =
                record(rest).ok_or_else(|| invalid("an extended header is invalid"))?;
            records.set(key, value)?;
            rest = behind;
        }
        Ok(records)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let number = || -> io::Result<Option<u64>> {
            let text = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
            let wrong = || invalid("a number in an extended header is invalid");
            if value.is_empty() {
                Ok(None)
            } else {
                text.and_then(|text| text.parse().ok()).ok_or_else(wrong).map(Some)
            }
        };
        let text = || Some(value.to_vec()).filter(|text| !text.is_empty());
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.target = text(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.modified_at = time(value),
            _ if key.starts_with(SPARSE) => {
                return Err(invalid("it has a sparse file in a format that is not supported"));
            }
            _ => {
                if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// The key and the value of the first record, and what follows it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    // A longer number is beyond any bound.
    let digits = bytes.iter().take(10).position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(bytes.get(..digits)?).ok()?.parse().ok()?;
    let body = bytes.get(digits + 1..len)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((body.get(..equals)?, body.get(equals + 1..)?, bytes.get(len..)?))
}

/// Seconds with a fraction. A time that can't be read is no reason to refuse a file.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // A fraction of a time before 1970 counts backwards.
    match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((seconds, nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(key: &str, value: &[u8]) -> Vec<u8> {
        let rest = key.len() + value.len() + 3;
        let len = (1..).map(|digits| rest + digits).find(|len| len.to_string().len() + rest == *len);
        [len.unwrap().to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat()
    }

    #[test]
    fn values_have_any_bytes() {
        let capability = [1, 0, 0, 2, b'\n', b'=', 0, 0];
        let bytes = [
            written("SCHILY.xattr.security.capability", &capability),
            written("path", b"a\nb=c"),
            written("mtime", b"-1.25"),
            written("size", b"12"),
            written("uid", b""),
            written("comment", b"x"),
        ];
        let expected = Records {
            path: Some(b"a\nb=c".to_vec()),
            size: Some(12),
            modified_at: Some((-2, 750_000_000)),
            attributes: vec![(b"security.capability".to_vec(), capability.to_vec())],
            ..Records::default()
        };
        assert_eq!(Records::parse(&bytes.concat()).unwrap(), expected);
    }

    #[test]
    fn an_invalid_record_is_refused() {
        for bytes in [
            &b"x"[..],
            b"8 path=a\n",
            b"99999999999 path=a\n",
            b"-5 a=\n",
            b"0 a=b\n",
            b"3 \n",
            b"6 abc\n",
            b"11 size=-1\n\n",
            b"11 size=+1\n",
            b"25 GNU.sparse.realsize=1\n\n",
        ] {
            assert!(Records::parse(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
