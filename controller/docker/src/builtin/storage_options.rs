//! Options of a container's storage.
//!
//! In: `storage_opt` of a task. Out: the limit of what it may write, or an error.

use crate::config::FieldError;

/// The only option of the engine.
const SIZE: &str = "size";

/// The limit in the options of a container's storage, in bytes.
///
/// # Errors
/// Another option, or a value that is not a size.
pub(super) fn of_options<'o>(
    options: impl IntoIterator<Item = (&'o String, &'o String)>,
) -> Result<Option<u64>, FieldError> {
    let mut limit = None;
    for (name, value) in options {
        if name != SIZE {
            let why = "the built-in engine knows only `size`; remove it, or use Docker or Podman";
            return Err(FieldError::new(format!("storage_opt.{name}"), why));
        }
        let wrong = || {
            let why = format!(
                "expected a number of bytes with or without k, m, g or t, such as 10g, found {value:?}"
            );
            FieldError::new("storage_opt.size", why)
        };
        limit = Some(bytes(value).ok_or_else(wrong)?);
    }
    Ok(limit)
}

/// `10g`, `10G`, `10gb`, `10GiB`: all are powers of 1024, as with Docker.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << (10 * power)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_docker() {
        let of = |text: &str| {
            let (name, value) = ("size".to_owned(), text.to_owned());
            of_options([(&name, &value)]).map_err(|error| error.to_string())
        };
        assert_eq!(of("10g"), Ok(Some(10 << 30)));
        assert_eq!(
            (of("5M"), of("7 kb"), of("1TiB"), of("12")),
            (Ok(Some(5 << 20)), Ok(Some(7 << 10)), Ok(Some(1 << 40)), Ok(Some(12)))
        );
        for wrong in ["", "g", "1x", "-1", "1.5g", "0", "99999999999t"] {
            assert!(of(wrong).unwrap_err().starts_with("use config.storage_opt.size: "), "{wrong}");
        }
        let other = ("dm.basesize".to_owned(), "1g".to_owned());
        let refused = of_options([(&other.0, &other.1)]).unwrap_err().to_string();
        assert!(refused.starts_with("use config.storage_opt.dm.basesize: "), "{refused}");
        assert_eq!(of_options([]).unwrap(), None);
    }
}
