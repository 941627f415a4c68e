//! The container through which Docker's containers join the network of their group: Docker knows no namespaces but those of
//! containers.
//!
//! In: the namespace's file, names, labels. Out: its image, and the request to create it. Its only process enters the namespace
//! that the agent has made, and stays there; a container that joins its network gets the namespace of this process. So the agent
//! owns the namespace, as for other drivers, and a daemon that restarts can't lose it. The image has one program, which the agent
//! brings along: no registry is needed.

use std::{collections::HashMap, io, path::Path};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, RestartPolicy,
    RestartPolicyNameEnum,
};
use sha2::{Digest as _, Sha256};

use crate::names;

/// The name of its image. No registry has this one.
pub(crate) const REPOSITORY: &str = "localhost/herdlet-pause";

/// The program in the image.
const PROGRAM: &str = "herdlet-shim";

/// Where the namespace is in the container.
const NAMESPACE: &str = "/network";

/// The tag of its image: another program has another one.
pub(crate) fn tag() -> String {
    names::hex(&Sha256::digest(herdlet_shim::PROGRAM)).chars().take(12).collect()
}

/// The image's name and tag.
pub(crate) fn image() -> String {
    format!("{REPOSITORY}:{}", tag())
}

/// The root of its image as an archive.
///
/// # Errors
/// Never, in practice: it is written to memory.
pub(crate) fn root() -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(u64::try_from(herdlet_shim::PROGRAM.len()).map_err(io::Error::other)?);
    header.set_mode(0o755);
    archive.append_data(&mut header, PROGRAM, herdlet_shim::PROGRAM)?;
    archive.into_inner()
}

/// The request to create it.
pub(crate) fn body(
    namespace: &Path,
    labels: HashMap<String, String>,
    hostname: String,
) -> ContainerCreateBody {
    let host = HostConfig {
        network_mode: Some("none".to_owned()),
        // The namespace belongs to the machine's users.
        userns_mode: Some("host".to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        // To enter the namespace; the program drops it then.
        cap_add: Some(vec!["SYS_ADMIN".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned(), "label=disable".to_owned()]),
        readonly_rootfs: Some(true),
        mounts: Some(vec![Mount {
            typ: Some(MountType::BIND),
            source: Some(namespace.display().to_string()),
            target: Some(NAMESPACE.to_owned()),
            read_only: Some(true),
            ..Mount::default()
        }]),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            ..RestartPolicy::default()
        }),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(image()),
        entrypoint: Some(vec![format!("/{PROGRAM}")]),
        cmd: Some(vec!["hold".to_owned(), NAMESPACE.to_owned()]),
        hostname: Some(hostname),
        labels: Some(labels),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}
