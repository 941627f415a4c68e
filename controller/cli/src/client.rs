//! A small typed client of the local API.
//!
//! In: an [`Address`] and an optional token. Out: one method per endpoint. Used by the command line and by tests. [`jobs`]
//! has the methods for jobs, [`allocs`] those for allocations, [`images`] those
//! for images, [`variables`] those for variables.

mod allocs;
mod catalogue;
mod error;
mod exec;
mod images;
mod jobs;
mod lines;
mod usage;
mod variables;

use std::{io::ErrorKind, time::Duration};

use futures_util::{Stream, TryStreamExt as _};
use herdlet_api_types::{
    api::{AgentStatus, ApplyReply, ApplyRequest, Change, EFFECT_HEADER, EFFECT_OPEN, PlanReply},
    csi::CsiPluginView,
    gc::Collectable,
    network::NetworkView,
    overview::{Drift, Overview, Transition},
    service::ServiceView,
    vault::RevokedToken,
    view::{AllocView, JobView, VolumeView},
};
use herdlet_base::{
    http_client::{self, Credentials, Tls, innermost},
    paths::encode,
};
use herdlet_manifest::yaml::Problems;
use reqwest::{Method, Request, RequestBuilder, Response, StatusCode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

pub use allocs::{LogRequest, RestartScope, Tty};
pub use catalogue::{CatalogueInstance, CatalogueService};
pub use error::{ClientError, Effect};
pub use exec::{ExecFrame, ExecInput, ExecOutput, ExecSocket};
pub use jobs::{Dispatch, JobChange};
pub use usage::{ResourceUsage, Usage};
pub use variables::{KeyRemoval, LockOperation, VariableKeyInfo, VariableRefusal};

use super::Address;

/// Timeout of a whole answer. Streams have none.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Timeout until the answer to a read, or a stream, begins: a healthy agent begins at once.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a blocking query waits for a change before it checks that the agent still responds, as a query parameter.
const CHANGE_WAIT: &str = "15s";
/// The agent adds up to a sixteenth at random, and then the answer must begin as usual.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(16 + HEAD_MAX.as_secs());
/// The agent persists a change before it answers. It answers within about 5 s even if the disk hangs.
const CHANGE_HEAD_MAX: Duration = Duration::from_secs(10);

/// A client of one agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
    base: String,
    token: Option<Zeroizing<String>>,
}

/// A change that is not answered for so long is followed by a question.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// An endpoint that answers at once.
const PROBE: &str = "/v1/herdlet/index";
/// The endpoint of a dry run.
const PLAN: &str = "/v1/herdlet/plan";

/// The index of a commit.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Done {
    #[serde(default)]
    index: u64,
}

type Result<T> = std::result::Result<T, ClientError>;

impl Client {
    ///
    /// # Errors
    /// When the platform's certificates can't be used.
    pub fn new(address: Address, token: Option<Zeroizing<String>>) -> Result<Self> {
        Self::trusting(address, token, &Credentials::default())
    }

    /// The same with other trusted certificates, or with a client certificate.
    ///
    /// # Errors
    /// When certificates can't be used.
    pub fn trusting(
        address: Address,
        token: Option<Zeroizing<String>>,
        credentials: &Credentials,
    ) -> Result<Self> {
        let (builder, base) = match &address {
            Address::Unix(path) => {
                (http_client::builder(Tls::None).unix_socket(path.clone()), "http://localhost".to_owned())
            }
            Address::Url(url) => {
                let builder = credentials.give(http_client::builder(Tls::of(url)));
                (builder.map_err(ClientError::Setup)?, url.clone())
            }
        };
        let http = builder.build().map_err(ClientError::Setup)?;
        Ok(Self { http, address, base, token })
    }

    /// Makes manifests the desired state.
    ///
    /// # Errors
    /// [`ClientError::Problems`] if they are invalid; then nothing was changed.
    pub async fn apply(&self, manifests: &ApplyRequest) -> Result<ApplyReply> {
        self.ask(self.to(Method::POST, "/v1/herdlet/apply").json(manifests)).await
    }

    /// What an apply of these manifests would change.
    ///
    /// # Errors
    /// See [`Client::apply`].
    pub async fn plan(&self, manifests: &ApplyRequest) -> Result<PlanReply> {
        self.ask(self.to(Method::POST, PLAN).json(manifests)).await
    }

    /// All jobs.
    ///
    /// # Errors
    /// See [`ClientError`]; the same for all methods below.
    pub async fn jobs(&self) -> Result<Vec<JobView>> {
        self.get("/v1/herdlet/jobs").await
    }

    /// All allocations.
    pub async fn allocs(&self) -> Result<Vec<AllocView>> {
        self.get("/v1/herdlet/allocs").await
    }

    /// All volumes.
    pub async fn volumes(&self) -> Result<Vec<VolumeView>> {
        self.get("/v1/herdlet/volumes").await
    }

    /// The networks of allocations, and their bridge.
    pub async fn networks(&self) -> Result<Vec<NetworkView>> {
        self.get("/v1/herdlet/networks").await
    }

    /// The tasks that are CSI plugins.
    pub async fn plugins(&self) -> Result<Vec<CsiPluginView>> {
        self.get("/v1/herdlet/plugins").await
    }

    /// All entries of the built-in catalogue.
    pub async fn services(&self) -> Result<Vec<ServiceView>> {
        self.get("/v1/herdlet/services").await
    }

    pub async fn status(&self) -> Result<AgentStatus> {
        self.get("/v1/herdlet/status").await
    }

    /// The machine, in Nomad's JSON of a node.
    pub async fn node(&self) -> Result<serde_json::Value> {
        let all: Vec<serde_json::Value> = self.get("/v1/nodes").await?;
        let id = all.first().and_then(|stub| stub["ID"].as_str()).unwrap_or_default();
        self.get(&format!("/v1/node/{id}")).await
    }

    /// Changes this node: its `drain` or its `eligibility`, in Nomad's form.
    pub async fn update_node(&self, node: &str, what: &str, body: &serde_json::Value) -> Result<()> {
        self.put(&format!("/v1/node/{node}/{what}"), body).await
    }

    /// All evaluations, in Nomad's JSON, oldest first.
    pub async fn evaluations(&self) -> Result<Vec<serde_json::Value>> {
        self.get("/v1/evaluations?namespace=*").await
    }

    /// Streams the agent's log from now on.
    pub async fn monitor(
        &self,
        level: &str,
        form: LogForm,
    ) -> Result<impl Stream<Item = Result<Vec<u8>>> + Unpin + use<>> {
        let request = self
            .to(Method::GET, "/v1/agent/monitor")
            .query(&[("plain", true), ("log_json", form == LogForm::Json)]);
        let answer = self.send(request.query(&[("log_level", level)])).await?;
        let pieces = answer.bytes_stream().map_ok(|bytes| bytes.to_vec());
        Ok(Box::pin(pieces.map_err(|error| broken(&error, Effect::None))))
    }

    /// Ended objects that can be collected.
    pub async fn ended(&self) -> Result<Vec<Collectable>> {
        self.get("/v1/herdlet/gc").await
    }

    /// Collects them, and returns what was collected.
    pub async fn collect(&self) -> Result<Vec<Collectable>> {
        self.ask(self.to(Method::PUT, "/v1/herdlet/gc")).await
    }

    /// Revokes the tokens of Vault that tasks have, and returns them.
    pub async fn revoke_vault_tokens(&self) -> Result<Vec<RevokedToken>> {
        self.ask(self.to(Method::PUT, "/v1/herdlet/vault/revoke-all")).await
    }

    /// Deletes a volume, and with `purge` its data.
    pub async fn delete_volume(&self, name: &str, purge: Purge) -> Result<u64> {
        let path = format!("/v1/herdlet/volume/{}", encode(name));
        let purge = purge == Purge::Data;
        self.change(self.to(Method::DELETE, &path).query(&[("purge", purge)])).await
    }

    /// All objects, then every change.
    pub async fn events(&self) -> Result<impl Stream<Item = Result<Change>> + Unpin + use<>> {
        let answer = self.send(self.to(Method::GET, "/v1/herdlet/events")).await?;
        Ok(Box::pin(lines::parsed(answer.bytes_stream())))
    }

    /// The response to a GET, for streaming.
    pub async fn open(&self, path: &str) -> Result<Response> {
        self.send(self.to(Method::GET, path)).await
    }

    /// The data of the status page.
    pub async fn overview(&self) -> Result<Overview> {
        self.get("/v1/herdlet/overview").await
    }

    /// The latest changes of allocations' convergence, newest first.
    pub async fn transitions(&self) -> Result<Vec<Transition>> {
        self.get("/v1/herdlet/transitions").await
    }

    /// The latest drift, newest first.
    pub async fn drifts(&self) -> Result<Vec<Drift>> {
        self.get("/v1/herdlet/drift").await
    }

    /// Waits for a change after `index`, and returns the new index. With 0, returns the present one at once.
    pub async fn changed(&self, index: u64) -> Result<u64> {
        loop {
            let request = self.to(Method::GET, "/v1/herdlet/index").query(&[("index", index)]);
            let request = request.query(&[("wait", CHANGE_WAIT)]).timeout(CHANGE_WAIT_MAX);
            let request = request.build().map_err(ClientError::Setup)?;
            let answer = self.execute_within(request, CHANGE_WAIT_MAX).await?;
            let now: Done = understood(answer, Effect::None).await?;
            if now.index != index {
                return Ok(now.index);
            }
        }
    }

    /// Has the agent read its folders and the data of templates as they are now. Returns the index of a commit that includes them;
    /// 0 if the agent is of a release that can't.
    pub async fn current(&self) -> Result<u64> {
        let request = self.to(Method::GET, "/v1/herdlet/current").timeout(ANSWER_MAX);
        let request = request.build().map_err(ClientError::Setup)?;
        let answer = tokio::select! {
            answer = self.execute_within(request, ANSWER_MAX) => answer,
            silent = self.hangs(Effect::None) => return Err(silent),
        };
        match answer {
            Ok(answer) => understood::<Done>(answer, Effect::None).await.map(|now| now.index),
            Err(ClientError::Status { status: 404 | 501, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(self.to(Method::GET, path)).await
    }

    /// Sends a change, and returns the index of its commit.
    async fn change(&self, request: RequestBuilder) -> Result<u64> {
        let done: Done = self.ask(request).await?;
        Ok(done.index)
    }

    async fn put<B: Serialize + Sync>(&self, path: &str, body: &B) -> Result<()> {
        let _: serde_json::Value = self.ask(self.to(Method::PUT, path).json(body)).await?;
        Ok(())
    }

    fn to(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token.as_str()),
            None => request,
        }
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let request = request.timeout(ANSWER_MAX).build().map_err(ClientError::Setup)?;
        let effect = effect_of(&request);
        understood(self.execute(request).await?, effect).await
    }

    /// Sends a request; an error status becomes an error.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        self.execute(request.build().map_err(ClientError::Setup)?).await
    }

    async fn execute(&self, request: Request) -> Result<Response> {
        match effect_of(&request) {
            Effect::None => self.execute_within(request, HEAD_MAX).await,
            Effect::Open => tokio::select! {
                answer = self.execute_within(request, CHANGE_HEAD_MAX) => answer,
                silent = self.hangs(Effect::Open) => Err(silent),
            },
        }
    }

    /// Resolves if the agent answers nothing at all. A change may take longer than [`HEAD_MAX`], because a slow disk is waited
    /// for, but meanwhile the agent answers questions.
    async fn hangs(&self, effect: Effect) -> ClientError {
        let silent = ClientError::Silent { address: self.address.clone(), within: HEAD_MAX, effect };
        // Most changes are answered before.
        tokio::time::sleep(PROBE_AFTER).await;
        let probe = self.to(Method::GET, PROBE).send();
        match tokio::time::timeout(HEAD_MAX.saturating_sub(PROBE_AFTER), probe).await {
            Err(_) => silent,
            // The change itself reports a broken connection.
            Ok(Ok(_) | Err(_)) => std::future::pending().await,
        }
    }

    /// The same, with a timeout until the answer begins.
    async fn execute_within(&self, request: Request, within: Duration) -> Result<Response> {
        let effect = effect_of(&request);
        let address = || self.address.clone();
        let answer = tokio::time::timeout(within, self.http.execute(request)).await;
        let answer = answer.map_err(|_| ClientError::Silent { address: address(), within, effect })?;
        let answer = answer.map_err(|error| match error.is_connect() {
            true => ClientError::Unreachable { address: address(), why: innermost(&error) },
            false => broken(&error, effect),
        })?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let open = answer.headers().get(EFFECT_HEADER).is_some_and(|effect| effect == EFFECT_OPEN);
        let text = answer.text().await.unwrap_or_default();
        if open {
            return Err(ClientError::Open(text.trim().to_owned()));
        }
        if let Ok(problems) = serde_json::from_str::<Problems>(&text) {
            return Err(ClientError::Problems(problems));
        }
        let message = if text.trim().is_empty() { status.to_string() } else { text.trim().to_owned() };
        Err(ClientError::Status { status: status.as_u16(), message })
    }
}

/// The possible effect of a request. `GET` and a dry run change nothing.
fn effect_of(request: &Request) -> Effect {
    let asks = *request.method() == Method::GET || request.url().path() == PLAN;
    if asks { Effect::None } else { Effect::Open }
}

/// Reads and parses the whole answer.
async fn understood<T: DeserializeOwned>(answer: Response, effect: Effect) -> Result<T> {
    let what = answer.url().path().to_owned();
    let bytes = answer.bytes().await;
    let bytes = bytes.map_err(|error| broken(&error, effect))?;
    serde_json::from_slice(&bytes).map_err(|error| ClientError::Answer { what, why: error.to_string() })
}

fn broken(error: &reqwest::Error, effect: Effect) -> ClientError {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    // hyper has several errors for this, depending on how far the answer came.
    let ended = causes.any(|cause| {
        let is_io = cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            )
        });
        is_io || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    });
    let why = if ended {
        "the agent closed it before the answer was complete".to_owned()
    } else {
        innermost(error)
    };
    ClientError::Broken { why, effect }
}

/// The form of the agent's log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogForm {
    Text,
    Json,
}

/// Whether a deployment is paused or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Pause,
    Resume,
}

/// Whether to remove the data of a deleted volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    Nothing,
    Data,
}

/// Flags of commands that stop something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct EndFlags {
    /// Skip the shutdown_delay of groups and tasks, also one that is in progress
    #[arg(long)]
    no_shutdown_delay: bool,
    /// End poststop tasks too, with their kill_timeout, and start none. A second stop or delete ends those that run
    #[arg(long)]
    force: bool,
}

impl EndFlags {
    /// As query parameters.
    fn query(self) -> Vec<(&'static str, &'static str)> {
        let flags = [("no_shutdown_delay", self.no_shutdown_delay), ("force", self.force)];
        flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "true")).collect()
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, JobKey};

    use super::*;

    /// An agent that was suspended by a signal: the kernel still accepts its connections.
    #[tokio::test(start_paused = true)]
    async fn silent_agent_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let _listens = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = Client::new(Address::Unix(path), None).unwrap();
        let silent =
            |error: ClientError| error.to_string().split(" did not answer ").last().map(str::to_owned);
        assert_eq!(silent(client.status().await.unwrap_err()).unwrap(), "within 5 s");
        assert_eq!(silent(client.events().await.err().unwrap()).unwrap(), "within 5 s");
        let job = JobKey { namespace: "default".into(), id: "x".into() };
        let plan = client.plan(&ApplyRequest::default()).await;
        assert_eq!(silent(plan.unwrap_err()).unwrap(), "within 5 s", "it changes nothing");
        // A change used to be waited for twice as long.
        let deleted = client.delete_job(&job, EndFlags::default()).await.unwrap_err();
        assert!(matches!(deleted, ClientError::Silent { effect: Effect::Open, .. }));
        assert_eq!(silent(deleted).unwrap(), "within 5 s");
        assert_eq!(silent(client.apply(&ApplyRequest::default()).await.unwrap_err()).unwrap(), "within 5 s");
        let exec = client.exec(AllocId::from_hash([1; 16]), "t", &[], Tty::No).await;
        assert_eq!(silent(exec.err().unwrap()).unwrap(), "within 5 s");
    }
}
