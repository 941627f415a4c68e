//! For `#[serde(deserialize_with = "codec::nil::or_default")]` at fields of structs that others hold by `#[serde(flatten)]`.
//!
//! serde keeps what it finds for such a struct until it has seen all, and so the decoder does not know for what a `nil` stands.

use serde::{Deserialize, Deserializer};

/// Reads a value, or the default where there is `nil`.
///
/// # Errors
/// When it is something else.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
