//! A small typed client of the local API.
//!
//! In: an [`Address`] and perhaps a token. Out: one method per endpoint. Used by the command line and by tests. What is about jobs is in
//! [`jobs`], what is about one allocation in [`allocs`].

mod allocs;
mod error;
mod exec;
mod jobs;
mod lines;
mod usage;

use std::{io::ErrorKind, time::Duration};

use futures_util::Stream;
use herdlet_api_types::{
    api::{AgentStatus, ApplyReply, ApplyRequest, Change, EFFECT_HEADER, EFFECT_OPEN, PlanReply},
    gc::Ended,
    overview::{Drift, Overview, Transition},
    service::ServiceView,
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
pub use error::{ClientError, Effect};
pub use exec::{ExecFrame, ExecInput, ExecOutput, ExecSocket};
pub use jobs::{Changed, Dispatch};
pub use usage::Usage;

use super::Address;

/// A request that isn't answered in full within this is lost. Streams have no such limit.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// An agent that works begins to answer a question at once, and a stream as well.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a reader waits for a change before it asks again whether the agent is still there, as it is written in a query.
const CHANGE_WAIT: &str = "15s";
/// It may be up to a sixteenth more by chance; then the answer begins as any other.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(16 + HEAD_MAX.as_secs());
/// What changes something waits for the disk, and is answered within about 5 s also where that hangs.
const CHANGE_HEAD_MAX: Duration = Duration::from_secs(10);

/// A client of one agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    address: Address,
    base: String,
    token: Option<Zeroizing<String>>,
}

/// Where it is asked what an apply would do.
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
    /// A client of the agent at `address`.
    ///
    /// # Errors
    /// When the platform's certificates can't be used.
    pub fn new(address: Address, token: Option<Zeroizing<String>>) -> Result<Self> {
        Self::trusting(address, token, &Credentials::default())
    }

    /// The same, which trusts others than the system does, or shows who it is.
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
    /// [`ClientError::Problems`] where they are wrong; then nothing was changed.
    pub async fn apply(&self, manifests: &ApplyRequest) -> Result<ApplyReply> {
        self.ask(self.to(Method::POST, "/v1/herdlet/apply").json(manifests)).await
    }

    /// What would come of an apply of these manifests.
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

    /// Everything in the built-in catalogue.
    pub async fn services(&self) -> Result<Vec<ServiceView>> {
        self.get("/v1/herdlet/services").await
    }

    /// How the agent is.
    pub async fn status(&self) -> Result<AgentStatus> {
        self.get("/v1/herdlet/status").await
    }

    /// The machine, as Nomad shows a node.
    pub async fn node(&self) -> Result<serde_json::Value> {
        let all: Vec<serde_json::Value> = self.get("/v1/nodes").await?;
        let id = all.first().and_then(|stub| stub["ID"].as_str()).unwrap_or_default();
        self.get(&format!("/v1/node/{id}")).await
    }

    /// What has ended and can be collected.
    pub async fn ended(&self) -> Result<Vec<Ended>> {
        self.get("/v1/herdlet/gc").await
    }

    /// Collects it: what was collected.
    pub async fn collect(&self) -> Result<Vec<Ended>> {
        self.ask(self.to(Method::PUT, "/v1/herdlet/gc")).await
    }

    /// Forgets a volume, and removes its data if `purge` says so.
    pub async fn delete_volume(&self, name: &str, purge: Purge) -> Result<u64> {
        let path = format!("/v1/herdlet/volume/{}", encode(name));
        let purge = purge == Purge::Data;
        self.change(self.to(Method::DELETE, &path).query(&[("purge", purge)])).await
    }

    /// Everything that is shown, then every change.
    pub async fn events(&self) -> Result<impl Stream<Item = Result<Change>> + Unpin + use<>> {
        let answer = self.send(self.to(Method::GET, "/v1/herdlet/events")).await?;
        Ok(Box::pin(lines::parsed(answer.bytes_stream())))
    }

    /// The answer to a GET, whatever it is.
    pub async fn open(&self, path: &str) -> Result<Response> {
        self.send(self.to(Method::GET, path)).await
    }

    /// The one screen.
    pub async fn overview(&self) -> Result<Overview> {
        self.get("/v1/herdlet/overview").await
    }

    /// The last changes of verdicts on allocations, newest first.
    pub async fn transitions(&self) -> Result<Vec<Transition>> {
        self.get("/v1/herdlet/transitions").await
    }

    /// The last differences from what was made, newest first.
    pub async fn drifts(&self) -> Result<Vec<Drift>> {
        self.get("/v1/herdlet/drift").await
    }

    /// Waits until something that is shown has changed after `index`: the index then. With 0, the present one at once.
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

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(self.to(Method::GET, path)).await
    }

    /// Changes something: the index of the commit.
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

    /// Sends a request; a refusal is an error.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        self.execute(request.build().map_err(ClientError::Setup)?).await
    }

    async fn execute(&self, request: Request) -> Result<Response> {
        let within = match effect_of(&request) {
            Effect::None => HEAD_MAX,
            Effect::Open => CHANGE_HEAD_MAX,
        };
        self.execute_within(request, within).await
    }

    /// The same; the answer must begin within this.
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

/// What may come of a request: questions are asked by `GET`, and what a manifest would do is one as well.
fn effect_of(request: &Request) -> Effect {
    let asks = *request.method() == Method::GET || request.url().path() == PLAN;
    if asks { Effect::None } else { Effect::Open }
}

/// The answer in full.
async fn understood<T: DeserializeOwned>(answer: Response, effect: Effect) -> Result<T> {
    let what = answer.url().path().to_owned();
    let bytes = answer.bytes().await;
    let bytes = bytes.map_err(|error| broken(&error, effect))?;
    serde_json::from_slice(&bytes).map_err(|error| ClientError::Answer { what, why: error.to_string() })
}

fn broken(error: &reqwest::Error, effect: Effect) -> ClientError {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    // HTTP has its own words for it, each for another place in an answer.
    let ended = causes.any(|cause| {
        let is_io = cause.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            )
        });
        is_io || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    });
    let why =
        if ended { "the agent ended it before its answer was whole".to_owned() } else { innermost(error) };
    ClientError::Broken { why, effect }
}

/// What becomes of a removed volume's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    Nothing,
    Data,
}

/// What the end of something may take, by the flags of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct EndFlags {
    /// Without the shutdown_delay of groups and tasks, nor the rest of one that runs
    #[arg(long)]
    no_shutdown_delay: bool,
    /// End poststop tasks too, with their kill_timeout, and start none; to stop or delete once more ends those that run
    #[arg(long)]
    force: bool,
}

impl EndFlags {
    /// The same in a request.
    fn query(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let flags = [("no_shutdown_delay", self.no_shutdown_delay), ("force", self.force)];
        flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "true"))
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, JobKey};

    use super::*;

    /// An agent that was stopped by a signal: the kernel still takes its connections.
    #[tokio::test(start_paused = true)]
    async fn an_agent_that_says_nothing_is_not_waited_for() {
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
        assert_eq!(
            silent(client.delete_job(&job, EndFlags::default()).await.unwrap_err()).unwrap(),
            "within 10 s"
        );
        let exec = client.exec(AllocId::from_hash([1; 16]), "t", &[], Tty::No).await;
        assert_eq!(silent(exec.err().unwrap()).unwrap(), "within 5 s");
    }
}
