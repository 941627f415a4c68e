//! The `config` of a task, of either driver, as one type.
//!
//! In: the interpolated `config` as JSON. Out: a [`ContainerConfig`]. Errors begin with the path of the field.

mod podman;

use herdlet_api_types::{
    driver::{ConfigFinding, PODMAN, Verdict},
    manifest::driver::{DockerConfig, PodmanConfig},
};
use herdlet_driver::{DriverError, DriverResult, read_config};

/// What a task asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerConfig {
    /// All that the driver `docker` has.
    pub(crate) docker: DockerConfig,
    /// What only the driver `podman` has.
    pub(crate) podman: PodmanExtras,
    /// Which driver's keys are written.
    pub(crate) keys: Keys,
}

/// The driver whose keys a config is written in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Keys {
    #[default]
    Docker,
    Podman,
}

impl Keys {
    /// The key of the addresses of DNS servers.
    pub(crate) const fn dns(self) -> &'static str {
        match self {
            Self::Docker => "dns_servers",
            Self::Podman => "dns",
        }
    }
}

/// What only the driver `podman` has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodmanExtras {
    /// Directories in memory: `TARGET[:OPTIONS]`.
    pub(crate) tmpfs: Vec<String>,
    pub(crate) memory_reservation_bytes: Option<i64>,
    pub(crate) memory_swap_bytes: Option<i64>,
    pub(crate) memory_swappiness: Option<i64>,
}

/// Why a field can't be used. The text begins with its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use config.{field}: {why}")]
pub(crate) struct FieldError {
    field: String,
    why: String,
}

impl FieldError {
    /// Whether the value is known before the start: it has no variables. The reason quotes it.
    pub(crate) fn is_of_text(&self) -> bool {
        !self.to_string().contains("${")
    }

    pub(crate) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }
}

impl From<FieldError> for ConfigFinding {
    fn from(FieldError { field, why }: FieldError) -> Self {
        Self { field, message: why, verdict: Verdict::Refused }
    }
}

impl From<FieldError> for DriverError {
    fn from(error: FieldError) -> Self {
        Self::fatal(error)
    }
}

/// Reads the config of a task of this driver.
///
/// # Errors
/// A field that is unknown, has another type, or can't be used.
pub(crate) fn read(driver: &str, config: &serde_json::Value) -> DriverResult<ContainerConfig> {
    Ok(typed(driver, config)??)
}

/// Reads a config: the inner error is about a field that has the right type.
///
/// # Errors
/// A field that is unknown or has another type.
pub(crate) fn typed(
    driver: &str,
    config: &serde_json::Value,
) -> DriverResult<Result<ContainerConfig, FieldError>> {
    let config = if driver == PODMAN {
        podman::translate(read_config::<PodmanConfig>(config)?)
    } else {
        Ok(ContainerConfig { docker: read_config::<DockerConfig>(config)?, ..ContainerConfig::default() })
    };
    Ok(config.and_then(usable))
}

fn usable(mut config: ContainerConfig) -> Result<ContainerConfig, FieldError> {
    let docker = &mut config.docker;
    if docker.auth.as_ref().is_some_and(|auth| auth.0.tls_verify == Some(false)) {
        return Err(FieldError::new(
            "auth.tls_verify",
            "the engine verifies certificates by its own config; remove it, and name the registry in `insecure-registries` of Docker's daemon.json or with `insecure = true` in Podman's registries.conf",
        ));
    }
    docker.image = docker.image.trim_start_matches("https://").to_owned();
    if docker.image.is_empty() {
        return Err(FieldError::new("image", "must not be empty"));
    }
    if let Some(isolation) = docker.isolation.as_deref().filter(|mode| !mode.is_empty() && *mode != "default")
    {
        return Err(FieldError::new("isolation", format!("{isolation:?} exists on Windows only; remove it")));
    }
    Ok(config)
}

/// A size such as `64m` in bytes, in Docker's notation.
pub(crate) fn bytes(text: &str) -> Option<i64> {
    let text = text.trim().to_ascii_lowercase();
    let digits_len = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_len);
    let factor: i64 = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [
            ("64m", Some(64 << 20)),
            ("1g", Some(1 << 30)),
            ("10", Some(10)),
            ("5KiB", Some(5120)),
            ("x", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let error = |driver: &str, config| read(driver, &config).unwrap_err().to_string();
        assert!(error("docker", json!({"image": "x", "imagine": 1})).contains("imagine"));
        // It was ignored, and certificates were verified all the same.
        let unverified = json!({"image": "x", "auth": {"username": "u", "tls_verify": false}});
        assert!(error("podman", unverified).starts_with("use config.auth.tls_verify: "));
        let verified = json!({"image": "x", "auth": {"username": "u", "tls_verify": true}});
        read("podman", &verified).unwrap();
        assert!(error("docker", json!({})).contains("config.image"));
        assert!(error("docker", json!({"image": "x", "isolation": "hyperv"})).contains("config.isolation"));
        assert!(error("podman", json!({"image": "x", "init_path": "/x"})).contains("config.init_path"));
        let config = read("docker", &json!({"image": "https://quay.io/x"})).unwrap();
        assert_eq!(config.docker.image, "quay.io/x");
    }
}
