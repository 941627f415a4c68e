//! Variables in a driver's config: the subset of HCL templates that jobs use there.
//!
//! In: the config as JSON, the values of variables. Out: the same shape with all strings replaced, or the first error
//! with its path. Keys, numbers and booleans stay as they are. It knows no driver's schema.

use std_alloc::{
    format,
    string::{String, ToString},
};

use serde_json::Value;

use super::{OUTPUT_BYTES_MAX, Values, is_name_char};

/// Deepest nesting of a config; serde_json does not read deeper either.
const DEPTH_MAX: usize = 128;

/// Longest piece of a user's text that an error quotes, in bytes.
const QUOTED_BYTES_MAX: usize = 64;

/// Why a driver's config could not be interpolated. `path` is written like `args[2]` or `env.HOME`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no variable with that name.
    #[error("interpolate config.{path}: there is no variable {name:?} (write $${{ for a literal ${{)")]
    UnknownVariable {
        /// Path in the config.
        path: String,
        /// The name as written.
        name: String,
    },
    /// The text between the braces is no variable; functions and operators are not supported.
    #[error("interpolate config.{path}: {expression:?} is not a variable (write $${{ for a literal ${{)")]
    NotAVariable {
        /// Path in the config.
        path: String,
        /// The text between the braces.
        expression: String,
    },
    /// A `${` without its `}`.
    #[error("interpolate config.{path}: a ${{ is not closed (write $${{ for a literal ${{)")]
    NotClosed {
        /// Path in the config.
        path: String,
    },
    /// The result is too long.
    #[error("interpolate config.{path}: the config grows past {OUTPUT_BYTES_MAX} bytes")]
    TooLong {
        /// Path where the limit was exceeded.
        path: String,
    },
    /// The config is nested too deeply.
    #[error("interpolate config.{path}: nested deeper than {DEPTH_MAX} levels")]
    TooDeep {
        /// Path in the config.
        path: String,
    },
}

/// Replaces the variables in all strings of a driver's config. Keys are left alone.
///
/// Forms: `${NAME}` (a variable of the task's environment), `${env["x.y"]}` and `${env.NAME}` (the same, for names with
/// other characters), `${attr.…}`, `${meta.…}`, `${node.…}` (facts of the node, also as `${meta["a b"]}`),
/// `${secret.NAME.KEY}` and `${secret.NAME["KEY"]}`. Blanks
/// within the braces are ignored; `$${` is a literal `${`. Anything else between braces is an error, as in Nomad.
pub fn interpolate_config(config: &Value, env: &impl Values) -> Result<Value, ConfigError> {
    Walk { env, path: String::new(), depth: 0, bytes_left: OUTPUT_BYTES_MAX }.value(config)
}

/// A walk over one config.
struct Walk<'e, E> {
    env: &'e E,
    path: String,
    depth: usize,
    bytes_left: usize,
}

impl<'e, E: Values> Walk<'e, E> {
    fn value(&mut self, value: &Value) -> Result<Value, ConfigError> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
            Value::String(text) => self.text(text).map(Value::String),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(index, item)| self.below(&format!("[{index}]"), item))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, field)| {
                    let step = if self.path.is_empty() { key.clone() } else { format!(".{key}") };
                    self.spend(key.len())?;
                    Ok((key.clone(), self.below(&step, field)?))
                })
                .collect::<Result<_, _>>()
                .map(Value::Object),
        }
    }

    fn below(&mut self, step: &str, value: &Value) -> Result<Value, ConfigError> {
        if self.depth == DEPTH_MAX {
            return Err(ConfigError::TooDeep { path: short(&self.path) });
        }
        let length = self.path.len();
        self.path.push_str(step);
        self.depth += 1;
        let result = self.value(value);
        self.depth -= 1;
        self.path.truncate(length);
        result
    }

    fn text(&mut self, text: &str) -> Result<String, ConfigError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            // `$${`: the dollar before is the escape, not text.
            let escaped = rest[..at].ends_with('$');
            let before = if escaped { &rest[..at - 1] } else { &rest[..at] };
            self.push(&mut out, before)?;
            let inner = &rest[at + "${".len()..];
            if escaped {
                self.push(&mut out, "${")?;
                rest = inner;
                continue;
            }
            let end =
                closing_brace(inner).ok_or_else(|| ConfigError::NotClosed { path: self.path.clone() })?;
            let value = self.look_up(&inner[..end])?;
            self.push(&mut out, value)?;
            rest = &inner[end + "}".len()..];
        }
        self.push(&mut out, rest)?;
        Ok(out)
    }

    fn look_up(&self, expression: &str) -> Result<&'e str, ConfigError> {
        let env = self.env;
        let expression = expression.trim();
        let value = match Name::read(expression) {
            None => {
                return Err(ConfigError::NotAVariable {
                    path: self.path.clone(),
                    expression: short(expression),
                });
            }
            Some(Name::Any(name)) => env.get(name),
            Some(Name::Env(name)) => env.var(name),
            Some(Name::Node { root, key }) => env.get(&format!("{root}.{key}")),
        };
        value.ok_or_else(|| ConfigError::UnknownVariable { path: self.path.clone(), name: short(expression) })
    }

    fn push(&mut self, out: &mut String, part: &str) -> Result<(), ConfigError> {
        self.spend(part.len())?;
        out.push_str(part);
        Ok(())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ConfigError> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => Err(ConfigError::TooLong { path: self.path.clone() }),
        }
    }
}

/// The target of an expression.
enum Name<'t> {
    /// A variable or a fact of the node.
    Any(&'t str),
    /// A variable.
    Env(&'t str),
    /// A fact of the node or a value of a secret, whose key has characters that a plain name can't have.
    Node { root: &'t str, key: &'t str },
}

impl<'t> Name<'t> {
    fn read(expression: &'t str) -> Option<Self> {
        if !expression.is_empty() && expression.chars().all(is_name_char) {
            return Some(match expression.strip_prefix("env.") {
                Some(name) => Self::Env(name),
                None => Self::Any(expression),
            });
        }
        let (root, index) = expression.split_once('[')?;
        let key = index.strip_suffix(']')?.trim().strip_prefix('"')?.strip_suffix('"')?;
        if key.contains(['"', '\\']) {
            return None;
        }
        match root.trim() {
            "env" => Some(Self::Env(key)),
            root @ ("attr" | "meta" | "node") => Some(Self::Node { root, key }),
            root if root.strip_prefix("secret.").is_some_and(is_secret_name) => {
                Some(Self::Node { root, key })
            }
            _ => None,
        }
    }
}

/// The names of `secret` blocks.
fn is_secret_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Position of the `}` that ends an expression; a `}` within quotes does not.
fn closing_brace(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.bytes().position(|byte| {
        quoted ^= byte == b'"';
        byte == b'}' && !quoted
    })
}

/// The beginning of a text, for an error.
fn short(text: &str) -> String {
    if text.len() <= QUOTED_BYTES_MAX {
        return text.to_string();
    }
    let end = (0..=QUOTED_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}
