//! Defaults, types, encodings and digests of sprig.

use aws_lc_rs::{
    cipher::{AES_256, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey},
    digest,
    iv::FixedLength,
};
use base64::prelude::*;

use super::{
    super::{arguments, encoding, refused, row},
    RANDOM, is_empty, numbers,
};
use crate::{
    compare,
    context::Context,
    error::{ErrorKind, Fault, Outcome},
    function::{Function, Group::Sprig},
    json::{self, Style},
    value::Value,
};

const NO_DERIVING: &str =
    "it needs a secret in the template, and 32 MiB for each render; write the password to a variable";

const NO_CERTIFICATES: &str = "only functions that make certificates use its result, and herdlet offers none";

pub(super) static TABLE: &[Function] = &[
    row(Sprig, "sprig_adler32sum", (1, 1), adler32),
    refused(Sprig, "sprig_ago", RANDOM),
    row(Sprig, "sprig_b32dec", (1, 1), |context, values| {
        or_message(context, |context| base32_decode(context, &values[0]))
    }),
    row(Sprig, "sprig_b32enc", (1, 1), base32_encode),
    row(Sprig, "sprig_b64dec", (1, 1), |context, values| {
        or_message(context, |context| encoding::decode(context, &values[0], &BASE64_STANDARD))
    }),
    row(Sprig, "sprig_b64enc", (1, 1), |context, values| {
        encoding::encode(context, &values[0], &BASE64_STANDARD)
    }),
    refused(Sprig, "sprig_bcrypt", RANDOM),
    refused(Sprig, "sprig_buildCustomCert", NO_CERTIFICATES),
    row(Sprig, "sprig_decryptAES", (2, 2), decrypt),
    row(Sprig, "sprig_deepEqual", (2, 2), |context, values| {
        compare::deep_equal(context, &values[0], &values[1]).map(Value::Bool)
    }),
    row(Sprig, "sprig_default", (1, 2), |_, values| {
        Ok(match values.get(1) {
            Some(value) if !is_empty(value) => value.clone(),
            Some(_) | None => values[0].clone(),
        })
    }),
    refused(Sprig, "sprig_derivePassword", NO_DERIVING),
    row(Sprig, "sprig_duration", (1, 1), |context, values| {
        let is_number = matches!(values[0], Value::Str(_) | Value::Int64(_));
        context.text(duration(if is_number { numbers::int(&values[0]) } else { 0 }))
    }),
    row(Sprig, "sprig_durationRound", (1, 1), duration_round),
    row(Sprig, "sprig_empty", (1, 1), |_, values| Ok(Value::Bool(is_empty(&values[0])))),
    refused(Sprig, "sprig_encryptAES", RANDOM),
    row(Sprig, "sprig_fail", (1, 1), |_, values| {
        Err(Fault::new(arguments::string(&values[0])?.into_owned()))
    }),
    row(Sprig, "sprig_fromJson", (1, 1), |context, values| {
        let text = arguments::text(&values[0])?;
        or_nil(json::parse(context, text))
    }),
    refused(Sprig, "sprig_genCA", RANDOM),
    refused(Sprig, "sprig_genCAWithKey", RANDOM),
    refused(Sprig, "sprig_genPrivateKey", RANDOM),
    refused(Sprig, "sprig_genSelfSignedCert", RANDOM),
    refused(Sprig, "sprig_genSelfSignedCertWithKey", RANDOM),
    refused(Sprig, "sprig_genSignedCert", RANDOM),
    refused(Sprig, "sprig_genSignedCertWithKey", RANDOM),
    refused(Sprig, "sprig_htpasswd", RANDOM),
    row(Sprig, "sprig_kindIs", (2, 2), |_, values| {
        Ok(Value::Bool(*arguments::string(&values[0])? == *values[1].kind_name()))
    }),
    row(Sprig, "sprig_kindOf", (1, 1), |context, values| context.text(values[0].kind_name())),
    row(Sprig, "sprig_mustFromJson", (1, 1), |context, values| {
        let text = arguments::text(&values[0])?;
        json::parse(context, text)
    }),
    row(Sprig, "sprig_mustToJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: true })
    }),
    row(Sprig, "sprig_mustToPrettyJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: true, html: true })
    }),
    row(Sprig, "sprig_mustToRawJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: false })
    }),
    row(Sprig, "sprig_sha1sum", (1, 1), |context, values| {
        encoding::hash(context, &values[0], &digest::SHA1_FOR_LEGACY_USE_ONLY)
    }),
    row(Sprig, "sprig_sha256sum", (1, 1), |context, values| {
        encoding::hash(context, &values[0], &digest::SHA256)
    }),
    row(Sprig, "sprig_sha512sum", (1, 1), |context, values| {
        encoding::hash(context, &values[0], &digest::SHA512)
    }),
    row(Sprig, "sprig_ternary", (3, 3), |_, values| {
        let Value::Bool(is) = &values[2] else {
            return Err(Fault::new(format!("expected bool; got {}", values[2].type_name())));
        };
        Ok(values[usize::from(!is)].clone())
    }),
    row(Sprig, "sprig_toJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: true })
    }),
    row(Sprig, "sprig_toPrettyJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: true, html: true })
    }),
    row(Sprig, "sprig_toRawJson", (1, 1), |context, values| {
        json::write(context, &values[0], Style { pretty: false, html: false })
    }),
    row(Sprig, "sprig_typeIs", (2, 2), |_, values| {
        Ok(Value::Bool(*arguments::string(&values[0])? == values[1].type_name()))
    }),
    row(Sprig, "sprig_typeIsLike", (2, 2), |_, values| {
        Ok(Value::Bool(
            arguments::string(&values[0])?.trim_start_matches('*')
                == values[1].type_name().trim_start_matches('*'),
        ))
    }),
    row(Sprig, "sprig_typeOf", (1, 1), |context, values| context.text(values[0].type_name())),
];

/// Decrypts what `encryptAES` of sprig returns: AES-256 in CBC mode, after the initial vector. A password is filled up with zeros.
fn decrypt(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let Value::Str(sealed) = encoding::decode(context, &values[1], &BASE64_STANDARD)? else {
        return Ok(Value::from(""));
    };
    if sealed.is_empty() {
        return Ok(Value::from(""));
    }
    let failed = || Fault::new("the text can't be decrypted with this password");
    let password = arguments::text(&values[0])?;
    let mut key = [0; 32];
    key.iter_mut().zip(password.iter()).for_each(|(own, byte)| *own = *byte);
    let (start, sealed) = sealed.split_first_chunk::<16>().ok_or_else(failed)?;
    let key = UnboundCipherKey::new(&AES_256, &key).map_err(|_| failed())?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).map_err(|_| failed())?;
    let mut text = sealed.to_vec();
    let start = DecryptionContext::Iv128(FixedLength::from(*start));
    let text = key.decrypt(&mut text, start).map_err(|_| failed())?.to_vec();
    context.text(text)
}

/// Keeps bounds, and turns other errors into nil.
fn or_nil(outcome: Outcome<Value>) -> Outcome<Value> {
    outcome.or_else(|fault| if fault.kind() == ErrorKind::Limit { Err(fault) } else { Ok(Value::Nil) })
}

/// Keeps bounds, and turns other errors into their text, as sprig does.
fn or_message(
    context: &mut Context<'_>,
    decode: impl FnOnce(&mut Context<'_>) -> Outcome<Value>,
) -> Outcome<Value> {
    match decode(context) {
        Err(fault) if fault.kind() != ErrorKind::Limit => context.text(fault.into_details().message),
        outcome => outcome,
    }
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32_encode(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::text(&values[0])?;
    context.charge(text.len() * 2)?;
    let mut out = Vec::new();
    for chunk in text.chunks(5) {
        let mut bits = [0; 8];
        bits[3..3 + chunk.len()].copy_from_slice(chunk);
        let number = u64::from_be_bytes(bits);
        let used = (chunk.len() * 8).div_ceil(5);
        for index in 0..8 {
            let digit = (number >> (35 - 5 * index)) & 31;
            out.push(if index < used { BASE32[digit as usize] } else { b'=' });
        }
    }
    context.text(out)
}

fn base32_decode(context: &mut Context<'_>, value: &Value) -> Outcome<Value> {
    let text = arguments::text(value)?;
    context.charge(text.len())?;
    let mut out = Vec::new();
    let (mut bits, mut count) = (0u32, 0u32);
    let body = text.iter().filter(|byte| !matches!(byte, b'\r' | b'\n' | b'='));
    for (at, byte) in body.enumerate() {
        let Some(digit) = BASE32.iter().position(|own| own == byte) else {
            return Err(Fault::new(format!("illegal base32 data at input byte {at}")));
        };
        bits = (bits << 5) | u32::try_from(digit).unwrap_or(0);
        count += 5;
        if count >= 8 {
            count -= 8;
            out.push(((bits >> count) & 0xff) as u8);
        }
    }
    context.text(out)
}

fn adler32(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let text = arguments::text(&values[0])?;
    context.charge(text.len())?;
    let (mut low, mut high) = (1u32, 0u32);
    for byte in text.iter() {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    context.text(((high << 16) | low).to_string())
}

/// As Go prints a duration of whole seconds.
fn duration(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let all = seconds.unsigned_abs();
    match (all / 3600, all / 60 % 60, all % 60) {
        (0, 0, seconds) => format!("{sign}{seconds}s"),
        (0, minutes, seconds) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

/// The largest unit of a duration: `2h10m5s` → `2h`.
fn duration_round(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let nanos = if let Value::Str(text) = &values[0] {
        go_duration(&text.lossy()).unwrap_or(0)
    } else if let Value::Int64(nanos) = &values[0] {
        i128::from(*nanos)
    } else {
        0
    };
    const SECOND: u128 = 1_000_000_000;
    let all = nanos.unsigned_abs();
    let units = [(31_536_000, "y"), (2_592_000, "mo"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let unit = units.iter().find(|(seconds, _)| all > seconds * SECOND);
    context.text(
        unit.map_or_else(|| "0s".to_owned(), |(seconds, name)| format!("{}{name}", all / (seconds * SECOND))),
    )
}

/// Nanoseconds of `1h30m5.5s`.
pub(super) fn go_duration(text: &str) -> Option<i128> {
    let mut rest = text.trim_start_matches(['-', '+']);
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let length = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let number: f64 = rest[..length].parse().ok()?;
        rest = &rest[length..];
        let units =
            [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("h", 3.6e12), ("m", 6e10), ("s", 1e9)];
        let (unit, factor) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        nanos += number * factor;
        rest = &rest[unit.len()..];
    }
    Some(nanos as i128)
}
