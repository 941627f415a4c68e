//! For `#[serde(deserialize_with = "codec::nil::or_default")]` on fields of structs that are embedded by `#[serde(flatten)]`.
//!
//! serde buffers the values of such a struct until it has seen all fields, so the decoder does not know the expected type of a `nil`.

use serde::{Deserialize, Deserializer};

/// Decodes a value, or the default if it is `nil`.
///
/// # Errors
/// If the value has another type.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
