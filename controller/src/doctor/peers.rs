//! Checks of the API on TCP, and of Consul.
//!
//! In: the config. Out: a finding for each that is configured. The request to Consul changes nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use herdlet_api::http::{Tls, Token};
use herdlet_api_types::{AllocId, InstanceId, job::ConsulAccess};
use herdlet_base::error::in_full;
use herdlet_config::{Config, consul::ConsulLogins};
use herdlet_manifest::manifests::{Drivers, read_folder};
use herdlet_services::catalog::{
    AclError, Consul, ConsulConfig, ConsulReader, ServiceOwner, check_service_token,
};

use super::Finding;

const CONSUL_MAX: Duration = Duration::from_secs(3);

/// Reads the token and the certificates of the API on TCP as an agent would.
pub(super) fn listener(config: &Config) -> Option<Finding> {
    let (address, token_file) = config.listen.as_ref()?;
    let token = Token::read(token_file).map_err(|error| in_full(&error));
    let tls = config.tls.clone().map(Tls::read).transpose().map_err(|error| in_full(&error));
    Some(match (token, tls) {
        (Err(why), _) | (_, Err(why)) => {
            let hint = "see `token_file` and `tls` of the config; an agent would not start";
            Finding::failure("listen", format!("{address}: failed to {why}"), hint)
        }
        (Ok(_), Ok(None)) if !is_loopback(&address.host) => Finding::warning(
            "listen",
            format!("{address}: the token is sent in plain text, readable on the network"),
            "set `tls` in the config",
        ),
        (Ok(_), Ok(tls)) => {
            let warnings =
                tls.as_ref().map(|tls| tls.warnings(herdlet_base::clock::wall_now())).unwrap_or_default();
            let found = format!("{address}, {}", if tls.is_some() { "with TLS" } else { "without TLS" });
            if warnings.is_empty() {
                Finding::ok("listen", found)
            } else {
                let hint = "a running agent reloads changed files by itself";
                Finding::warning("listen", format!("{found}: {}", warnings.join("; ")), hint)
            }
        }
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A finding for each Consul that is configured; also for the default one if a job in a folder has services in it.
pub(super) async fn consuls(config: &Config) -> Vec<Finding> {
    let wanted = crate::consul_config::resolve_each(config).filter(|(_, settings)| {
        // Only the default one has an address without a config.
        let is_guess = settings.as_ref().is_ok_and(|(resolved, _)| !resolved.is_named());
        !is_guess || wants_consul(&config.manifests)
    });
    let found = wanted.map(async |(name, settings)| {
        let (resolved, logins) = match settings {
            Ok(settings) => settings,
            Err(error) => {
                let hint =
                    "correct its address, its token file or its certificates; an agent would not start";
                return Finding::failure("consul", format!("{error:#}"), hint);
            }
        };
        let tokens = config.consul.by_name().remove(&name).and_then(|consul| consul.service_tokens_dir);
        let finding = consul(&resolved, &logins, tokens.as_deref()).await;
        match name.as_str() {
            ConsulAccess::DEFAULT_CLUSTER => finding,
            name => Finding { message: format!("`{name}`: {}", finding.message), ..finding },
        }
    });
    join_all(found).await
}

async fn consul(resolved: &ConsulConfig, logins: &ConsulLogins, tokens: Option<&Path>) -> Finding {
    let answer = match Consul::new(resolved, InstanceId("doctor".to_owned())) {
        Ok(client) => {
            // An owner without services: the request is cheap, and needs the same permissions as reading
            // registrations.
            let nobody = ServiceOwner { alloc: AllocId::from_hash([0; 16]), task: None };
            let asked =
                tokio::time::timeout(CONSUL_MAX, async { client.inspect(&nobody, &[]).await.map(drop) });
            asked.await.map_or_else(
                |_| Err("does not answer".to_owned()),
                |answer| answer.map_err(|error| in_full(&error)),
            )
        }
        Err(error) => Err(in_full(&error)),
    };
    let unfit = tokens.map(unfit_tokens).unwrap_or_default();
    match answer {
        Ok(()) if !unfit.is_empty() => Finding::warning(
            "consul",
            format!("answers, but {}", unfit.join("; ")),
            "see `consul.service_tokens_dir` of the config; those services are not registered",
        ),
        Ok(()) => match login_trouble(resolved, logins).await {
            Some(why) => Finding::warning(
                "consul",
                format!("answers, but {why}"),
                "tasks and services that need a token wait; see docs/guide/consul.md",
            ),
            None => Finding::ok("consul", "answers"),
        },
        Err(why) if resolved.is_named() => {
            Finding::warning("consul", why, "services are not registered in it until it answers")
        }
        Err(why) => Finding::warning(
            "consul",
            format!("a job of a folder has services in Consul, but the config has no `consul`: {why}"),
            "configure it, or set provider = \"nomad\": in Nomad's formats the default provider is consul",
        ),
    }
}

/// Returns why no task or service can log in although the config requires it.
async fn login_trouble(resolved: &ConsulConfig, logins: &ConsulLogins) -> Option<String> {
    logins.tasks.identity.as_ref().or(logins.services.identity.as_ref())?;
    let reader = ConsulReader::new(resolved).ok()?;
    let asked = tokio::time::timeout(CONSUL_MAX, reader.look_up("00000000-0000-0000-0000-000000000000"));
    match asked.await.ok()? {
        Err(AclError::Refused { why, .. }) => Some(why),
        Ok(()) | Err(AclError::NotFound { .. } | AclError::Unreachable { .. }) => None,
    }
}

/// Service tokens in a directory that can't be used.
pub(super) fn unfit_tokens(dir: &Path) -> Vec<String> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return Vec::from([format!("{} can't be read: {error}", dir.display())]),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // No service has such a name: editors and mounted secrets leave such files.
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.iter().filter_map(|name| check_service_token(dir, name).err()).collect()
}

pub(super) fn wants_consul(folders: &[PathBuf]) -> bool {
    let files =
        folders.iter().flat_map(|folder| read_folder(folder, &Drivers::built_in(), &BTreeSet::new()).files);
    let mut jobs = files.filter_map(|file| file.content.ok()).flat_map(|set| set.jobs);
    jobs.any(|job| job.object.consul_clusters().contains(ConsulAccess::DEFAULT_CLUSTER))
}
