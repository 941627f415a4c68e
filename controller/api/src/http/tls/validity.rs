//! The validity of certificates.
//!
//! In: certificates in DER. Out: the validity of the certificate that expires first. Other fields are ignored, and the
//! certificates are not verified. Source: RFC 5280, section 4.1.

use herdlet_api_types::{UnixNanos, rfc3339::rfc3339};
use rustls::pki_types::CertificateDer;

/// Latest warning before a certificate expires; for short-lived certificates, a fifth of their validity.
const NOTICE_S_MAX: i64 = 14 * 24 * 3_600;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Validity in seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

impl Validity {
    /// The validity of the certificate that expires first. One without a readable validity or without an end (the year 9999) is
    /// no limit.
    pub(super) fn of(certificates: &[CertificateDer<'_>]) -> Option<Self> {
        certificates.iter().filter_map(|one| Self::of_one(one)).min_by_key(|one| one.until)
    }

    /// The warning that it has expired, will soon expire, or is not valid yet. Continues a sentence whose subject is the
    /// certificate.
    pub(super) fn warning(self, now: UnixNanos) -> Option<String> {
        let now = now.0 / 1_000_000_000;
        let notice = ((self.until - self.from) / 5).min(NOTICE_S_MAX);
        let at = rfc3339(UnixNanos(self.until.saturating_mul(1_000_000_000))).unwrap_or_default();
        if now < self.from {
            let from = rfc3339(UnixNanos(self.from.saturating_mul(1_000_000_000))).unwrap_or_default();
            return Some(format!("is valid only from {from}: clients reject it until then"));
        }
        match self.until - now {
            ..=0 => Some(format!("has expired at {at}: clients reject it; replace it")),
            left if left <= notice => {
                let days = left / 86_400;
                let left = if days > 1 { format!("{days} days") } else { format!("{} hours", left / 3_600) };
                Some(format!("expires in {left}, at {at}: replace it"))
            }
            _ => None,
        }
    }

    fn of_one(der: &[u8]) -> Option<Self> {
        let (certificate, _) = element(der, SEQUENCE)?;
        let (mut rest, _) = element(certificate, SEQUENCE)?;
        if let Some((_, after)) = element(rest, VERSION) {
            rest = after;
        }
        // Serial number, signature algorithm, issuer.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            (_, rest) = element(rest, tag)?;
        }
        let (validity, _) = element(rest, SEQUENCE)?;
        let (from, rest) = time(validity)?;
        let (until, _) = time(rest)?;
        Some(Self { from, until })
    }
}

/// The content of the first element, if it has this tag, and the rest.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[own, first], rest) = der.split_first_chunk()?;
    if own != tag {
        return None;
    }
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length has this many bytes.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

/// Parses `YYMMDDHHMMSSZ`, where 50 is 1950, or the form with a four-digit year.
fn time(der: &[u8]) -> Option<(i64, &[u8])> {
    let (year_len, (text, rest)) = match element(der, UTC_TIME) {
        Some(found) => (2, found),
        None => (4, element(der, GENERALIZED_TIME)?),
    };
    let digits = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if digits.len() != year_len + 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, digits) = digits.split_at(year_len);
    let year = match (year_len, year.parse::<i16>().ok()?) {
        (2, year @ ..50) => 2000 + year,
        (2, year) => 1900 + year,
        (_, year) => year,
    };
    let field = |at: usize| digits.get(2 * at..2 * at + 2)?.parse::<i8>().ok();
    let civil = jiff::civil::DateTime::new(year, field(0)?, field(1)?, field(2)?, field(3)?, field(4)?, 0);
    let at = civil.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    Some((at.as_second(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len();
        let head = match u8::try_from(len) {
            Ok(len) if len < 0x80 => vec![tag, len],
            _ => vec![tag, 0x82, u8::try_from(len >> 8).unwrap(), u8::try_from(len & 0xff).unwrap()],
        };
        [&head, content].concat()
    }

    fn certificate(from: &[u8], until: &[u8]) -> CertificateDer<'static> {
        let validity = der(SEQUENCE, &[from, until].concat());
        let issuer = der(SEQUENCE, &[0; 300]);
        let parts = [
            der(VERSION, &[INTEGER, 1, 2]),
            der(INTEGER, &[1]),
            der(SEQUENCE, &[]),
            issuer,
            validity,
            der(SEQUENCE, &[]),
        ];
        der(SEQUENCE, &der(SEQUENCE, &parts.concat())).into()
    }

    #[test]
    fn either_form_of_time_is_read() {
        let until = Validity::of(&[certificate(
            &der(UTC_TIME, b"700101000000Z"),
            &der(GENERALIZED_TIME, b"20500101000000Z"),
        )]);
        assert_eq!(until, Some(Validity { from: 0, until: 2_524_608_000 }));
    }

    #[test]
    fn a_chain_holds_as_long_as_its_shortest() {
        let first = certificate(&der(UTC_TIME, b"260101000000Z"), &der(UTC_TIME, b"270101000000Z"));
        let second = certificate(&der(UTC_TIME, b"250101000000Z"), &der(UTC_TIME, b"260601000000Z"));
        let endless =
            certificate(&der(UTC_TIME, b"260101000000Z"), &der(GENERALIZED_TIME, b"99991231235959Z"));
        let all = Validity::of(&[first, second, endless]);
        assert_eq!(all, Some(Validity { from: 1_735_689_600, until: 1_780_272_000 }));
        assert_eq!(Validity::of(&[]), None);
    }

    #[test]
    fn expiry_is_warned_about_in_advance() {
        const DAY: i64 = 86_400;
        let warned = |holds: i64, now: i64| {
            Validity { from: 0, until: holds * DAY }.warning(UnixNanos(now * DAY * 1_000_000_000))
        };
        assert_eq!(warned(90, 75), None);
        let soon = warned(90, 77).unwrap();
        assert!(soon.starts_with("expires in 13 days, at 1970-04-01T00:00:00"), "{soon}");
        assert_eq!(warned(7, 5), None, "a short-lived certificate gets no warning");
        assert!(warned(5, 4).unwrap().starts_with("expires in 24 hours"));
        let later = Validity { from: DAY, until: 9 * DAY }.warning(UnixNanos(0)).unwrap();
        assert!(later.starts_with("is valid only from 1970-01-02T00:00:00"), "{later}");
        assert!(warned(90, 91).unwrap().starts_with("has expired at 1970-04-01T00:00:00"));
    }

    #[test]
    fn invalid_certificate_has_no_validity() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x80\x00\x00", b"\x02\x01\x01"] {
            assert_eq!(Validity::of(&[CertificateDer::from(bytes)]), None);
        }
        let odd = certificate(&der(UTC_TIME, b"261301000000Z"), &der(UTC_TIME, b"270101000000Z"));
        assert_eq!(Validity::of(&[odd]), None);
    }
}
