//! Whether users other than root and the agent's could change what an agent obeys, or read its private files.
//!
//! In: the config. Out: a finding for each untrusted path, or one if all are trusted.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use herdlet_base::{
    error::in_full,
    ownership::{self, OwnershipError},
};
use herdlet_config::Config;
use herdlet_manifest::manifests::{Drivers, read_folder};

use super::{Finding, StateDir};

const CHECK: &str = "ownership";

/// Lists what an agent refuses before what it only warns about.
pub(super) fn ownership(config: &Config, state_dir: StateDir<'_>) -> Vec<Finding> {
    let trusted = ownership::trusted();
    let session = ownership::check_session(config.runtime_paths()).err().map(|error| {
        Finding::failure(CHECK, format!("failed to {error}"), "an agent would not start with this")
    });
    let refused = refused(config, state_dir).into_iter().map(|error| {
        let hint = format!("an agent would not start with this; it trusts {trusted}");
        Finding::failure(CHECK, format!("failed to {}", in_full(&error)), hint)
    });
    let warned = warned(config).into_iter().map(|error| {
        let hint = format!(
            "the agent uses it anyway, so a user who can change it controls what the agent runs or mounts; it trusts {trusted}"
        );
        Finding::warning(CHECK, format!("failed to {}", in_full(&error)), hint)
    });
    let unknown = ownership::unknown_names().into_iter().map(|(variable, name)| {
        let message =
            format!("{variable} names {name}, which is not in /etc/passwd or /etc/group: it is not trusted");
        Finding::warning(CHECK, message, "correct the name, or use its number")
    });
    let found: Vec<Finding> = session.into_iter().chain(refused).chain(warned).chain(unknown).collect();
    if found.is_empty() {
        let (StateDir::Planned(state) | StateDir::InUse(state)) = state_dir;
        let state = state.display();
        let message = format!("only {trusted} can change the state in {state}, config, tokens and manifests");
        return vec![Finding::ok(CHECK, message)];
    }
    found
}

fn refused(config: &Config, state_dir: StateDir<'_>) -> Vec<OwnershipError> {
    let (StateDir::Planned(state) | StateDir::InUse(state)) = state_dir;
    let checked = obeyed(config).into_iter().map(|path| ownership::check_if_there(&path));
    let of_state = [ownership::check_if_there(state), ownership::check_way(&config.socket)];
    let mut found: Vec<_> = of_state.into_iter().chain(checked).filter_map(Result::err).collect();
    found.extend(if_trusted(state, ownership::exposed_kept));
    found
}

/// The exposed entries of a directory. If the directory itself is untrusted, its entries don't matter.
fn if_trusted(dir: &Path, exposed: impl Fn(&Path) -> Vec<OwnershipError>) -> Vec<OwnershipError> {
    let is_trusted = dir.is_dir() && ownership::check(dir).is_ok();
    if is_trusted { exposed(dir) } else { Vec::new() }
}

/// Files and directories whose content an agent trusts as its operator's.
fn obeyed(config: &Config) -> Vec<PathBuf> {
    let mut paths: Vec<&PathBuf> = config.files.iter().chain(&config.runtime_parent).collect();
    paths.extend(config.listen.as_ref().map(|(_, token)| token));
    paths.extend(config.consul.token_file.iter().chain(&config.consul.service_tokens_dir));
    paths.extend(config.variables_key_file.iter().chain([&config.common_plugin_dir]));
    let cluster = config.cluster.as_ref();
    let tls = config.tls.iter().chain(cluster.and_then(|cluster| cluster.http_tls.as_ref()));
    for files in tls {
        paths.extend([&files.certificate, &files.key].into_iter().chain(&files.clients));
    }
    if let Some(cluster) = cluster {
        paths.extend(cluster.intro_token_file.iter().chain(&cluster.moved_from));
        paths.extend(cluster.tls.iter().flat_map(|tls| [&tls.authority, &tls.certificate, &tls.key]));
    }
    for vault in config.vault.values() {
        paths.extend(vault.ca_file.iter().chain(&vault.ca_path));
        paths.extend(vault.certificate.iter().flat_map(|(certificate, key)| [certificate, key]));
    }
    paths.into_iter().cloned().chain(config.drivers.credential_files()).collect()
}

fn warned(config: &Config) -> Vec<OwnershipError> {
    // Each may be a folder or a file.
    let folders = config.manifests.iter().flat_map(|folder| {
        ownership::check_if_there(folder)
            .err()
            .into_iter()
            .chain(if_trusted(folder, ownership::exposed_entries))
            .chain(if_trusted(folder, exposed_env_files))
    });
    let volumes = config.host_volumes.iter().map(|volume| ownership::check_way(&volume.path));
    let mut found: Vec<_> = folders.chain(volumes.filter_map(Result::err)).collect();
    let mut seen = BTreeSet::new();
    // A file of variables may also be an entry of the folder.
    found.retain(|error| seen.insert(error.path().to_owned()));
    found
}

/// The exposed ones of the files of variables that manifests of a folder name.
fn exposed_env_files(folder: &Path) -> Vec<OwnershipError> {
    let read = read_folder(folder, &Drivers::built_in(), &BTreeSet::new());
    let env_files = read.files.iter().flat_map(|file| &file.env_files);
    env_files.filter_map(|path| ownership::check_if_there(path).err()).collect()
}
