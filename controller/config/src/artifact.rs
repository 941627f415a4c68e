//! `artifact`: limits on downloads for tasks, with Nomad's names.
//!
//! In: the section of the config file. Out: limits, or problems.

use std::time::Duration;

use herdlet_api_types::manifest::{Span, Text};
use schemars::JsonSchema;
use serde::Deserialize;

/// Limits on downloads for tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Artifact {
    /// Maximum size of a download, such as `100GB`; `0` means unlimited.
    pub http_max_size: Option<Text>,
    /// Maximum duration of a download.
    pub http_read_timeout: Option<Span>,
    /// Maximum unpacked size of an archive; `0` means unlimited.
    pub decompression_size_limit: Option<Text>,
    /// Maximum number of entries of an archive; 0 means unlimited.
    pub decompression_file_count_limit: Option<u64>,
}

impl Artifact {
    /// Returns the invalid limits, by field.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let sizes = [
            ("http_max_size", &self.http_max_size),
            ("decompression_size_limit", &self.decompression_size_limit),
        ];
        let message = |text: &Text| format!("expected a size such as 100GB or 512MiB, found \"{}\"", text.0);
        let sizes = sizes.into_iter().filter_map(|(at, text)| {
            let text = text.as_ref().filter(|text| bytes_of(&text.0).is_none())?;
            Some((at, message(text)))
        });
        let span = self.http_read_timeout.filter(|span| span.0.as_nanos() <= 0);
        let span = span.map(|_| ("http_read_timeout", "must be longer than 0".to_owned()));
        sizes.chain(span).collect()
    }

    /// Converts to limits. Invalid fields, already reported, get their defaults.
    pub(super) fn limits(&self) -> Limits {
        let default = Limits::default();
        let bytes = |text: &Option<Text>, default| {
            text.as_ref().and_then(|text| bytes_of(&text.0)).map_or(default, or_endless)
        };
        Limits {
            http_bytes_max: bytes(&self.http_max_size, default.http_bytes_max),
            http_time_max: self
                .http_read_timeout
                .map_or(default.http_time_max, |span| Duration::from_nanos(span.0.as_nanos().unsigned_abs())),
            unpacked_bytes_max: bytes(&self.decompression_size_limit, default.unpacked_bytes_max),
            entries_max: self.decompression_file_count_limit.map_or(default.entries_max, or_endless),
        }
    }
}

fn or_endless(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

/// Parses a size as Nomad's agents do: `100GB` is 10¹¹, `1KiB` is 1024.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let power = |base: u64, prefix: &str| {
        let at = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == prefix)?;
        base.checked_pow(u32::try_from(at).ok()?)
    };
    let scale = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('i')) {
        Some(prefix) => power(1024, prefix)?,
        None => power(1000, unit.strip_suffix('b').unwrap_or(&unit))?,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Limits on downloads, as in Nomad's `client.artifact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `http_max_size`: maximum bytes of a download.
    pub http_bytes_max: u64,
    /// `http_read_timeout`: maximum duration of a download. Unpacking has the same limit.
    pub http_time_max: Duration,
    /// `decompression_size_limit`: maximum bytes of an unpacked archive.
    pub unpacked_bytes_max: u64,
    /// `decompression_file_count_limit`: maximum entries of an archive.
    pub entries_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            http_bytes_max: 100_000_000_000,
            http_time_max: Duration::from_secs(30 * 60),
            unpacked_bytes_max: 100_000_000_000,
            entries_max: 4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("100GB", Some(100_000_000_000)),
            ("1 KiB", Some(1024)),
            ("5m", Some(5_000_000)),
            ("2Gi", Some(2 << 30)),
            ("", None),
            ("GB", None),
            ("-1", None),
            ("1.5GB", None),
            ("1XB", None),
            ("99999999999PB", None),
        ] {
            assert_eq!(bytes_of(text), bytes, "{text}");
        }
        let artifact = Artifact { http_max_size: Some("0".into()), ..Artifact::default() };
        assert_eq!(artifact.limits(), Limits { http_bytes_max: u64::MAX, ..Limits::default() });
        let invalid = Artifact { decompression_size_limit: Some("much".into()), ..Artifact::default() };
        assert_eq!(invalid.problems()[0].0, "decompression_size_limit");
    }
}
