//! The catalogues of services, behind one interface: the built-in one and Consul agents.
//!
//! In: an owner, and the registrations that a catalogue should hold for it. Out: changes made, or the result of an
//! inspection. Registrations are independent: a refused one delays no other. Results of Consul's checks, and external
//! changes, are reported as [`CatalogEvent`]s. This module does not know when services are wanted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use herdlet_api_types::{
    AllocId,
    job::{ConsulAccess, Job, Provider},
    service::Registration,
};
use herdlet_base::observation::{Class, Observation};

mod built_in;
mod consul;

pub use built_in::BuiltIn;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use consul::feed_consul;
pub use consul::{
    AclError, Consul, ConsulClusters, ConsulConfig, ConsulConfigError, ConsulError, ConsulFingerprint,
    ConsulLogin, ConsulReader, ConsulToken, DataError, DataRequest, DataResponse, Place, ServiceCounts,
    Verification, check_service_token, path_of,
};

use crate::report::CheckReport;

/// How long to wait for Consul before reporting that none answers.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The owner of services: a task, or the group if `task` is `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceOwner {
    pub alloc: AllocId,
    pub task: Option<String>,
}

/// An event in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogEvent {
    /// The catalogue no longer holds what it should for this owner: inspect it.
    Changed(ServiceOwner),
    /// A check that the catalogue runs has a new result.
    Check(CheckReport),
}

/// Why a catalogue does not hold what it should; one entry for each failed registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .failures.iter().map(|failure| failure.why.as_str()).collect::<Vec<_>>().join("; "))]
pub struct CatalogError {
    pub failures: Vec<CatalogFailure>,
}

/// One registration that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogFailure {
    /// Whether a retry can help.
    pub class: Class,
    /// A fragment that reads after "failed to".
    pub why: String,
}

impl CatalogError {
    /// Whether a retry can help for any of the registrations.
    pub fn class(&self) -> Class {
        self.failures.iter().map(|failure| failure.class).min().unwrap_or(Class::Retry)
    }
}

/// All catalogues of this agent.
#[derive(Debug, Clone)]
pub struct Catalogs {
    pub built_in: Arc<BuiltIn>,
    /// The Consul agents. No request is sent to one before a service is registered there, except to remove leftovers from configured ones.
    pub consuls: Arc<ConsulClusters>,
}

impl Catalogs {
    /// Warnings about jobs whose services need a Consul that does not answer, or that the config lacks; one for each Consul.
    pub async fn lacking(consuls: &ConsulClusters, jobs: &[Job]) -> Vec<String> {
        let mut wanting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for job in jobs {
            for cluster in job.consul_clusters() {
                wanting.entry(cluster).or_default().push(job.key().to_string());
            }
        }
        let asked = wanting.iter().map(async |(cluster, names)| {
            let names = names.join(", ");
            let Some(consul) = consuls.find(Some(&ConsulAccess::of_cluster(cluster))) else {
                return Some(format!(
                    "{names}: the agent's config has no Consul `{cluster}`, so their services there are not registered and the job does not \
                     converge; add it to `consul.clusters`"
                ));
            };
            let why = unanswered(&consul).await?;
            let which = match *cluster {
                ConsulAccess::DEFAULT_CLUSTER => String::new(),
                cluster => format!(" `{cluster}`"),
            };
            Some(format!(
                "{names}: services must be registered in Consul{which}, but no Consul answers ({why}). They will be registered once one answers; until then \
                 the job does not converge. To use the built-in catalogue, set `provider: nomad`, in HCL provider = \"nomad\"; in \
                 Nomad's formats a service without `provider` is for Consul"
            ))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Registers the services of the built-in catalogue, and checks that one of the Consuls answers for the others, which are not
    /// registered yet. Those of a Consul that does not answer delay no others: [`Self::up`] handles each Consul separately.
    ///
    /// # Errors
    ///
    /// If services are wanted in Consul, and no Consul can be reached.
    pub async fn ask(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<(), CatalogError> {
        let (built_in, in_consul) = split(wanted);
        self.built_in.up(owner, built_in);
        let (places, lacking) = self.consuls.by_place(owner, &in_consul);
        let wanting = places.iter().filter(|(_, wanted)| !wanted.is_empty());
        let answers = join_all(wanting.map(|(consul, wanted)| consul.ask_for(owner, wanted.len()))).await;
        if answers.iter().any(Result::is_ok) { Ok(()) } else { collect(lacking, answers) }
    }

    /// Makes the catalogues hold exactly these registrations for `owner`. Those in Consul whose ids are in `untouched` stay as they
    /// are, registered or not, and in another Consul than the wanted one too. A Consul that does not answer delays no other.
    ///
    /// # Errors
    ///
    /// Lists the registrations that failed; the others succeeded.
    pub async fn up(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
        untouched: &BTreeSet<String>,
    ) -> Result<(), CatalogError> {
        let (built_in, in_consul) = split(wanted);
        self.built_in.up(owner, built_in);
        let (places, lacking) = self.consuls.by_place(owner, &in_consul);
        let registered = places.iter().map(|(consul, wanted)| consul.up_except(owner, wanted, untouched));
        collect(lacking, join_all(registered).await)
    }

    /// Removes all registrations of `owner` and verifies that they are gone. Succeeds if there are none. A Consul that the config lacks
    /// keeps its entries.
    ///
    /// # Errors
    ///
    /// If a Consul can't be reached or refuses.
    pub async fn down(&self, owner: &ServiceOwner, known: &[Registration]) -> Result<(), CatalogError> {
        let (_, in_consul) = split(known);
        self.built_in.down(owner);
        let (places, _) = self.consuls.by_place(owner, &in_consul);
        collect(Vec::new(), join_all(places.iter().map(|(consul, known)| consul.down(owner, known))).await)
    }

    /// Whether the catalogues hold exactly these registrations for `owner`.
    ///
    /// # Errors
    ///
    /// If a Consul can't be reached.
    pub async fn inspect(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
    ) -> Result<Observation, CatalogError> {
        let (built_in, in_consul) = split(wanted);
        let here = self.built_in.inspect(owner, &built_in);
        // If nothing is wanted on one side, its result does not matter.
        let mut seen = Vec::from_iter((!built_in.is_empty() || in_consul.is_empty()).then_some(here));
        let (places, lacking) = self.consuls.by_place(owner, &in_consul);
        let inspected = join_all(places.iter().map(|(consul, wanted)| consul.inspect(owner, wanted))).await;
        let mut failures = lacking;
        for result in inspected {
            match result {
                Ok(observation) => seen.push(observation),
                Err(error) => failures.extend(error.failures),
            }
        }
        if failures.is_empty() { Ok(together(seen)) } else { Err(CatalogError { failures }) }
    }
}

/// What observations of several catalogues mean together.
fn together(seen: Vec<Observation>) -> Observation {
    let mut all = seen.into_iter();
    let Some(first) = all.next() else { return Observation::Present };
    all.fold(first, |before, next| match (before, next) {
        (Observation::Present, Observation::Present) => Observation::Present,
        (Observation::Absent, Observation::Absent) => Observation::Absent,
        (Observation::Foreign { why } | Observation::Lost { why }, _)
        | (_, Observation::Foreign { why } | Observation::Lost { why }) => Observation::Foreign { why },
        (Observation::Present | Observation::Absent, _) => {
            Observation::foreign("some services are not registered")
        }
    })
}

/// Why a Consul does not answer; `None` if it does.
async fn unanswered(consul: &Consul) -> Option<String> {
    // The caller needs a quick answer, so a slow Consul counts as none.
    match tokio::time::timeout(ANSWER_MAX, consul.ask()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it has not answered within {ANSWER_MAX:?}")),
    }
}

fn collect(lacking: Vec<CatalogFailure>, results: Vec<Result<(), CatalogError>>) -> Result<(), CatalogError> {
    let failed = results.into_iter().filter_map(Result::err).flat_map(|error| error.failures);
    let failures: Vec<_> = lacking.into_iter().chain(failed).collect();
    if failures.is_empty() { Ok(()) } else { Err(CatalogError { failures }) }
}

fn split(registrations: &[Registration]) -> (Vec<Registration>, Vec<Registration>) {
    registrations.iter().cloned().partition(|registration| match registration.provider {
        Provider::Nomad => true,
        Provider::Consul => false,
    })
}
