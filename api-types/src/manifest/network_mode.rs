//! `network.mode`.

use core::fmt;
use std_alloc::{borrow::ToOwned, format, string::String};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// `network.mode`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// The machine's network.
    #[default]
    Host,
    /// A network of the allocation's own, which a bridge connects with the machine.
    Bridge,
    /// A network of the allocation's own, with nothing but a loopback interface.
    None,
    /// A network of the allocation's own, which the CNI network of this name sets up: `cni/NAME`.
    Cni(String),
}

/// Begins the mode of CNI networks.
const CNI: &str = "cni/";

/// The form of such a mode. `SPEC.md` of CNI has the form of names.
#[cfg(feature = "schema")]
const CNI_PATTERN: &str = "^cni/[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$";

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Bridge => f.write_str("bridge"),
            Self::None => f.write_str("none"),
            Self::Cni(name) => write!(f, "{CNI}{name}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 200
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

impl Serialize for NetworkMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NetworkMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match &*text {
            "host" => Ok(Self::Host),
            "bridge" => Ok(Self::Bridge),
            "none" => Ok(Self::None),
            _ => match text.strip_prefix(CNI) {
                Some(name) if is_name(name) => Ok(Self::Cni(name.to_owned())),
                Some(_) | None => Err(de::Error::custom(format!(
                    "expected `host`, `bridge`, `none` or `cni/NAME`, found {text:?}"
                ))),
            },
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for NetworkMode {
    fn schema_name() -> std_alloc::borrow::Cow<'static, str> {
        "NetworkMode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "`network.mode`.",
            "oneOf": [
                { "const": "host", "description": "The machine's network.", "type": "string" },
                {
                    "const": "bridge",
                    "description": "A network of the allocation's own, which a bridge connects with the machine.",
                    "type": "string",
                },
                {
                    "const": "none",
                    "description": "A network of the allocation's own, with nothing but a loopback interface.",
                    "type": "string",
                },
                {
                    "pattern": CNI_PATTERN,
                    "x-name": "network-mode",
                    "description": "A network of the allocation's own, which the CNI network of this name sets up: `cni/NAME`.",
                    "type": "string",
                },
            ],
        })
    }
}
