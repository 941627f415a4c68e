//! The keys of variables that the config and the environment name.

use std::{ffi::OsString, path::Path};

use herdlet_config::Config;
use herdlet_variables::KeySource;

/// The directory in which systemd provides credentials to a service.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Where the keys are, for a state directory.
pub(crate) fn source(config: &Config, state: &Path) -> KeySource {
    let credentials: Option<OsString> = std::env::var_os(CREDENTIALS);
    let configured = config.variables_key_file.as_deref();
    KeySource::choose(configured, credentials.as_deref().map(Path::new), &state.join("keys"))
}
