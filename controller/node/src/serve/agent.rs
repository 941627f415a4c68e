//! `ClientStats.*`, `Agent.*` and `NodeMeta.*`: the machine, the agent on it, and the node's metadata.

use std::collections::BTreeMap;

use herdlet_api::alloc_ops::{host, monitor, stream::Form};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{error::Refusal, serve::answer};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Answered, NodeService, Queried, TokenOnly,
    failure::{Failure, StreamEnd, last_frame},
    files::arguments,
    meta::{MetaRefused, MetaView},
    stream_answer::ToServer,
};
use crate::acl::{Access, Acl, Denied};

/// Options for following the agent's log.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Monitored {
    log_level: String,
    #[serde(rename = "LogJSON")]
    log_json: bool,
    plain_text: bool,
    auth_token: Secret,
}

/// Options for exporting earlier log entries.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Exported {
    on_disk: bool,
    auth_token: Secret,
}

/// Stock clients without a log file return this text.
const NO_LOG_FILE: &str = "No nomad log file defined";
/// Stock clients run `journalctl` for users who may read the agent's log.
const NO_JOURNAL: &str = "the journal cannot be read through the API; run journalctl on the node";

/// The requested profile.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Profiled {
    profile: String,
    auth_token: Secret,
}

/// Changes to the node's metadata.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct MetaChange {
    meta: BTreeMap<String, Option<String>>,
    auth_token: Secret,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Meta {
    meta: BTreeMap<String, String>,
    dynamic: BTreeMap<String, Option<String>>,
    #[serde(rename = "Static")]
    configured: BTreeMap<String, String>,
}

impl From<MetaView> for Meta {
    fn from(MetaView { meta, dynamic, configured }: MetaView) -> Self {
        Self { meta, dynamic, configured }
    }
}

impl NodeService {
    pub(super) async fn host_stats(&self, asked: TokenOnly) -> Answered {
        self.on_node(&asked.auth_token, Access::reads).await?;
        let stats = self.host.stats(&self.parts.reach).await?;
        Ok(answer(&Queried::new(json!({ "HostStats": stats })))?)
    }

    pub(super) async fn read_meta(&self, asked: TokenOnly) -> Answered {
        self.on_node(&asked.auth_token, Access::reads).await?;
        Ok(answer(&Meta::from(self.parts.meta.read()))?)
    }

    pub(super) async fn apply_meta(&self, changed: MetaChange) -> Answered {
        self.on_node(&changed.auth_token, Access::writes).await?;
        let applied = self.parts.meta.apply(changed.meta).await;
        let applied = applied.map_err(|error| match error {
            MetaRefused::Invalid(_) => Refusal::coded(400, error),
            MetaRefused::Failed(_) => Refusal::coded(500, error),
        })?;
        Ok(answer(&Meta::from(applied))?)
    }

    pub(super) async fn host_data(&self, asked: TokenOnly) -> Answered {
        self.on_agent(&asked.auth_token, Access::reads).await?;
        let data = host::data().await?;
        Ok(answer(&json!({ "AgentID": self.parts.agent, "HostData": data }))?)
    }

    /// Profiles are specific to Go; there are none here.
    pub(super) async fn profile(&self, wanted: Profiled) -> Answered {
        self.on_agent(&wanted.auth_token, Access::writes).await?;
        Err(Refusal::coded(404, format!("Pprof profile not found profile: {}", wanted.profile)).into())
    }

    pub(super) async fn monitor(&self, stream: &mut ToServer) -> Result<(), StreamEnd> {
        let Some(wanted) = arguments::<Monitored>(stream).await? else { return Ok(()) };
        if let Err(denied) = self.allows_agent(&wanted.auth_token, Access::reads).await {
            return Ok(stream.send(&last_frame(&denied, Some(denied.code()))).await?);
        }
        let form = Form::of(wanted.plain_text);
        // More detailed messages are for developers, who read the log on the machine.
        let is_trace = wanted.log_level.eq_ignore_ascii_case("trace");
        let level = if is_trace { "debug" } else { &wanted.log_level };
        match monitor::listen(&self.parts.reach.bounds, level, wanted.log_json) {
            Ok(listener) => self.send_stream(stream, |pieces| listener.run(form, pieces)).await,
            Err(error) => Ok(stream.send(&last_frame(&error, Some(error.code()))).await?),
        }
    }

    /// Earlier log entries are not available: the agent writes no file, and its journal is read with `journalctl` on the machine.
    pub(super) async fn export_log(&self, stream: &mut ToServer) -> Result<(), StreamEnd> {
        let Some(wanted) = arguments::<Exported>(stream).await? else { return Ok(()) };
        if let Err(denied) = self.allows_agent(&wanted.auth_token, Access::reads).await {
            return Ok(stream.send(&last_frame(&denied, Some(denied.code()))).await?);
        }
        let (why, code) = if wanted.on_disk { (NO_LOG_FILE, 400) } else { (NO_JOURNAL, 500) };
        Ok(stream.send(&last_frame(why, Some(code))).await?)
    }

    pub(super) async fn on_node(&self, token: &Secret, enough: fn(Access) -> bool) -> Result<(), Failure> {
        if enough(self.acl(token).await?.node()) { Ok(()) } else { Err(Denied::Refused.into()) }
    }

    /// Checks access to the agent. Without ACLs, the operator must have allowed it.
    async fn on_agent(&self, token: &Secret, enough: fn(Access) -> bool) -> Result<(), Failure> {
        let acl = self.acl(token).await?;
        let is_allowed = if *acl == Acl::Disabled { self.parts.debug } else { enough(acl.agent()) };
        if is_allowed { Ok(()) } else { Err(Denied::Refused.into()) }
    }
}
