//! The config of an image: what a container of it runs, and the layers of its root.
//!
//! In: the bytes of a config, the number of layers in its manifest. Out: an [`ImageConfig`], within bounds. Sources: the OCI image
//! specification, `config.md`; `moby/moby:image/spec/specs-go/v1/image.go` for what Docker adds.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::{digest::Digest, document::DOCUMENT_BYTES_MAX, platform::Platform};

/// The defaults of containers of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// None if it is not written.
    pub platform: Option<Platform>,
    /// `USER`, `USER:GROUP` or numbers; empty for root.
    pub user: String,
    /// `NAME=VALUE`.
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// Empty for `/`.
    pub working_dir: String,
    pub volumes: Vec<String>,
    /// `PORT/PROTOCOL`.
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// A name or a number; empty for SIGTERM.
    pub stop_signal: String,
    pub healthcheck: Option<Healthcheck>,
    /// The digests of the unpacked layers, the lowest one first.
    pub diff_ids: Vec<Digest>,
}

/// Docker's check of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healthcheck {
    /// `NONE`, or `CMD` with arguments, or `CMD-SHELL` with a line.
    pub test: Vec<String>,
    /// Docker's default if absent, as the others.
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub start_period: Option<Duration>,
    pub retries: Option<u32>,
}

/// Why a config is refused. Continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("read the config of the image: it is larger than {DOCUMENT_BYTES_MAX} bytes")]
    TooLarge,
    #[error("read the config of the image: {why}")]
    Syntax { why: String },
    #[error(
        "read the config of the image: it has {digests} digests of layers, and its manifest {layers} layers"
    )]
    Layers { digests: usize, layers: usize },
    #[error("read the config of the image: {field} contains a zero byte")]
    Zero { field: &'static str },
}

#[derive(Deserialize)]
struct RawImage {
    #[serde(default, deserialize_with = "or_default")]
    os: String,
    #[serde(default, deserialize_with = "or_default")]
    architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    variant: String,
    #[serde(default, deserialize_with = "or_default")]
    config: RawConfig,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<Digest>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RawConfig {
    #[serde(deserialize_with = "or_default")]
    user: String,
    #[serde(deserialize_with = "or_default")]
    env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    entrypoint: Words,
    #[serde(deserialize_with = "or_default")]
    cmd: Words,
    #[serde(deserialize_with = "or_default")]
    working_dir: String,
    #[serde(deserialize_with = "or_default")]
    volumes: BTreeMap<String, IgnoredAny>,
    #[serde(deserialize_with = "or_default")]
    exposed_ports: BTreeMap<String, IgnoredAny>,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    stop_signal: String,
    healthcheck: Option<RawHealthcheck>,
}

/// Times in nanoseconds; 0 for the default.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RawHealthcheck {
    #[serde(deserialize_with = "or_default")]
    test: Vec<String>,
    interval: i64,
    timeout: i64,
    start_period: i64,
    retries: i64,
}

/// A list, or one text in images of old builders.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    List(Vec<String>),
    One(String),
}

impl Default for Words {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Words {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::List(list) => list,
            Self::One(text) => vec![text],
        }
    }
}

/// Programs in Go write `null` for what is empty.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl ImageConfig {
    /// Reads the config of an image with this number of layers.
    ///
    /// # Errors
    /// If it can't be the config of that image.
    pub fn read(bytes: &[u8], layers: usize) -> Result<Self, ConfigError> {
        let read = Self::read_alone(bytes)?;
        match read.diff_ids.len() {
            digests if digests == layers => Ok(read),
            digests => Err(ConfigError::Layers { digests, layers }),
        }
    }

    /// Reads a config without the manifest of its image.
    ///
    /// # Errors
    /// If it is none.
    pub fn read_alone(bytes: &[u8]) -> Result<Self, ConfigError> {
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
            return Err(ConfigError::TooLarge);
        }
        let syntax = |error: serde_json::Error| {
            // The parser may quote a text of any length.
            let why = error.to_string().chars().filter(|char| !char.is_control()).take(200).collect();
            ConfigError::Syntax { why }
        };
        let RawImage { os, architecture, variant, config, rootfs } =
            serde_json::from_slice(bytes).map_err(syntax)?;
        let platform = Platform { os, architecture, variant };
        let read = Self {
            platform: Some(platform).filter(|platform| !platform.architecture.is_empty()),
            user: config.user,
            env: config.env,
            entrypoint: config.entrypoint.into_list(),
            cmd: config.cmd.into_list(),
            working_dir: config.working_dir,
            volumes: config.volumes.into_keys().collect(),
            exposed_ports: config.exposed_ports.into_keys().collect(),
            labels: config.labels,
            stop_signal: config.stop_signal,
            healthcheck: config.healthcheck.map(Healthcheck::of_raw).filter(|check| !check.test.is_empty()),
            diff_ids: rootfs.diff_ids,
        };
        read.check_texts()?;
        Ok(read)
    }

    /// The kernel takes texts that end with a zero byte: what follows one would be lost.
    fn check_texts(&self) -> Result<(), ConfigError> {
        let test = self.healthcheck.as_ref().map(|check| &*check.test).unwrap_or_default();
        for (field, texts) in [
            ("Env", &*self.env),
            ("Entrypoint", &self.entrypoint),
            ("Cmd", &self.cmd),
            ("Volumes", &self.volumes),
            ("Healthcheck", test),
            ("User", std::slice::from_ref(&self.user)),
            ("WorkingDir", std::slice::from_ref(&self.working_dir)),
        ] {
            if texts.iter().any(|text| text.contains('\0')) {
                return Err(ConfigError::Zero { field });
            }
        }
        Ok(())
    }
}

impl Healthcheck {
    fn of_raw(raw: RawHealthcheck) -> Self {
        let length = |ns: i64| u64::try_from(ns).ok().filter(|ns| *ns > 0).map(Duration::from_nanos);
        Self {
            test: raw.test,
            interval: length(raw.interval),
            timeout: length(raw.timeout),
            start_period: length(raw.start_period),
            retries: u32::try_from(raw.retries).ok().filter(|number| *number > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(config: &Json, layers: usize) -> Result<ImageConfig, ConfigError> {
        ImageConfig::read(config.to_string().as_bytes(), layers)
    }

    fn image(config: &Json) -> Json {
        json!({"os": "linux", "architecture": "amd64", "config": config, "rootfs": {"type": "layers", "diff_ids": []}})
    }

    #[test]
    fn everything_that_a_container_needs_is_read() {
        let diff_id = format!("sha256:{}", "a".repeat(64));
        let written = json!({
            "os": "linux", "architecture": "arm64", "variant": "v8", "created": "2026-01-01T00:00:00Z",
            "config": {
                "User": "redis:1000", "Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/entry"], "Cmd": ["a", ""],
                "WorkingDir": "/data", "Volumes": {"/data": {}}, "ExposedPorts": {"6379/tcp": {}},
                "Labels": {"a": "b"}, "StopSignal": "SIGQUIT", "ArgsEscaped": true, "OnBuild": null,
                "Healthcheck": {"Test": ["CMD", "x"], "Interval": 5_000_000_000_i64, "Retries": 3},
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created_by": "x", "empty_layer": true}],
        });
        let healthcheck = Healthcheck {
            test: vec!["CMD".to_owned(), "x".to_owned()],
            interval: Some(Duration::from_secs(5)),
            timeout: None,
            start_period: None,
            retries: Some(3),
        };
        let expected = ImageConfig {
            platform: Some(Platform {
                os: "linux".to_owned(),
                architecture: "arm64".to_owned(),
                variant: "v8".to_owned(),
            }),
            user: "redis:1000".to_owned(),
            env: vec!["PATH=/bin".to_owned(), "A=b=c".to_owned()],
            entrypoint: vec!["/entry".to_owned()],
            cmd: vec!["a".to_owned(), String::new()],
            working_dir: "/data".to_owned(),
            volumes: vec!["/data".to_owned()],
            exposed_ports: vec!["6379/tcp".to_owned()],
            labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            stop_signal: "SIGQUIT".to_owned(),
            healthcheck: Some(healthcheck),
            diff_ids: vec![Digest::parse(&diff_id).unwrap()],
        };
        assert_eq!(read(&written, 1), Ok(expected));
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let nulls = json!({"User": null, "Env": null, "Entrypoint": null, "Cmd": null, "WorkingDir": null,
            "Volumes": null, "ExposedPorts": null, "Labels": null, "StopSignal": null, "Healthcheck": null});
        let empty = read(&image(&json!({})), 0).unwrap();
        assert_eq!(read(&image(&nulls), 0).unwrap(), empty);
        assert_eq!(read(&image(&Json::Null), 0).unwrap(), empty);
        let bare = json!({"rootfs": {"diff_ids": null}});
        assert_eq!(read(&bare, 0).unwrap(), ImageConfig::default());
        let none = read(&image(&json!({"Healthcheck": {"Test": null, "Interval": -1}})), 0).unwrap();
        assert_eq!(none.healthcheck, None);
        let one = read(&image(&json!({"Cmd": "run it", "Entrypoint": ""})), 0).unwrap();
        assert_eq!((one.cmd, one.entrypoint), (vec!["run it".to_owned()], vec![String::new()]));
    }

    #[test]
    fn a_config_of_another_image_is_refused() {
        assert_eq!(read(&image(&json!({})), 1), Err(ConfigError::Layers { digests: 0, layers: 1 }));
        for text in ["", "{}", "[]", "{\"rootfs\": null}", "{\"rootfs\": {\"diff_ids\": [\"x\"]}}"] {
            assert!(ImageConfig::read(text.as_bytes(), 0).is_err(), "{text}");
        }
        let spaces = format!("{}{}", image(&json!({})), " ".repeat(4 * 1024 * 1024));
        assert_eq!(ImageConfig::read(spaces.as_bytes(), 0), Err(ConfigError::TooLarge));
        for wrong in
            [json!({"Env": "A=b"}), json!({"Env": [1]}), json!({"Volumes": ["/x"]}), json!({"Cmd": 1})]
        {
            assert!(matches!(read(&image(&wrong), 0), Err(ConfigError::Syntax { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_text_that_the_kernel_would_cut_is_refused() {
        for (config, field) in [
            (json!({"Env": ["A=b\u{0}c"]}), "Env"),
            (json!({"Cmd": ["\u{0}"]}), "Cmd"),
            (json!({"Entrypoint": ["/x\u{0}y"]}), "Entrypoint"),
            (json!({"Volumes": {"/x\u{0}": {}}}), "Volumes"),
            (json!({"User": "root\u{0}"}), "User"),
            (json!({"WorkingDir": "/\u{0}"}), "WorkingDir"),
            (json!({"Healthcheck": {"Test": ["CMD", "\u{0}"]}}), "Healthcheck"),
        ] {
            assert_eq!(read(&image(&config), 0), Err(ConfigError::Zero { field }));
        }
    }
}
