//! The catalogues of services, behind one interface: the built-in one and a Consul agent.
//!
//! In: an owner, and the registrations that a catalogue should hold for it. Out: changes made, or the result of an
//! inspection. Registrations are independent: a refused one delays no other. Results of Consul's checks, and external
//! changes, are reported as [`CatalogEvent`]s. This module does not know when services are wanted.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use herdlet_api_types::{
    AllocId,
    job::{Job, Provider},
    service::Registration,
};
use herdlet_base::observation::{Class, Observation};

mod built_in;
mod consul;

pub use built_in::BuiltIn;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use consul::feed_consul;
pub use consul::{
    AclError, Consul, ConsulConfig, ConsulConfigError, ConsulError, ConsulFingerprint, ConsulLogin,
    ConsulReader, ConsulToken, DataError, DataRequest, DataResponse, ServiceCounts, Verification,
    check_service_token, path_of,
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
    /// The Consul agent. No request is sent before a service is registered there.
    pub consul: Arc<Consul>,
}

impl Catalogs {
    /// A warning about jobs whose services need Consul, if Consul does not answer; `None` if it does or no job needs
    /// it.
    pub async fn lacking(consul: &Consul, jobs: &[Job]) -> Option<String> {
        let wanting = jobs.iter().filter(|job| job.has_services_in(Provider::Consul));
        let names: Vec<String> = wanting.map(|job| job.key().to_string()).collect();
        if names.is_empty() {
            return None;
        }
        // The caller needs a quick answer, so a slow Consul counts as none.
        let asked = tokio::time::timeout(ANSWER_MAX, consul.ask());
        let why = match asked.await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it has not answered within {ANSWER_MAX:?}"),
        };
        let names = names.join(", ");
        Some(format!(
            "{names}: services must be registered in Consul, but no Consul answers ({why}). They will be registered once one answers; until then \
             the job does not converge. To use the built-in catalogue, set `provider: nomad`, in HCL provider = \"nomad\"; in \
             Nomad's formats a service without `provider` is for Consul"
        ))
    }

    /// Registers the services of the built-in catalogue, and checks that a Consul answers for the others, which are not
    /// registered yet.
    ///
    /// # Errors
    ///
    /// If Consul can't be reached.
    pub async fn ask(&self, owner: &ServiceOwner, wanted: &[Registration]) -> Result<(), CatalogError> {
        let (built_in, consul) = split(wanted);
        self.built_in.up(owner, built_in);
        self.consul.ask_for(owner, consul.len()).await
    }

    /// Makes the catalogues hold exactly these registrations for `owner`. Those in Consul whose ids are in `untouched` stay as they
    /// are, registered or not.
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
        let (built_in, consul) = split(wanted);
        self.built_in.up(owner, built_in);
        if consul.is_empty() && !self.consul.holds(owner) {
            self.consul.stop_waiting_for(owner);
            return Ok(());
        }
        self.consul.up_except(owner, &consul, untouched).await
    }

    /// Removes all registrations of `owner` and verifies that they are gone. Succeeds if there are none.
    ///
    /// # Errors
    ///
    /// If Consul can't be reached or refuses.
    pub async fn down(&self, owner: &ServiceOwner, known: &[Registration]) -> Result<(), CatalogError> {
        let (_, consul) = split(known);
        self.built_in.down(owner);
        if consul.is_empty() && !self.consul.holds(owner) {
            self.consul.stop_waiting_for(owner);
            return Ok(());
        }
        self.consul.down(owner, &consul).await
    }

    /// Whether the catalogues hold exactly these registrations for `owner`.
    ///
    /// # Errors
    ///
    /// If Consul can't be reached.
    pub async fn inspect(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
    ) -> Result<Observation, CatalogError> {
        let (built_in, consul) = split(wanted);
        let here = self.built_in.inspect(owner, &built_in);
        if consul.is_empty() && !self.consul.holds(owner) {
            return Ok(here);
        }
        let there = self.consul.inspect(owner, &consul).await?;
        Ok(match (here, there) {
            (Observation::Present, Observation::Present) => Observation::Present,
            // If nothing is wanted on one side, its result does not matter.
            (Observation::Present, other) if built_in.is_empty() => other,
            (Observation::Absent, Observation::Absent) => Observation::Absent,
            (Observation::Foreign { why } | Observation::Lost { why }, _)
            | (_, Observation::Foreign { why } | Observation::Lost { why }) => Observation::Foreign { why },
            (Observation::Present | Observation::Absent, _) => {
                Observation::foreign("some services are not registered")
            }
        })
    }
}

fn split(registrations: &[Registration]) -> (Vec<Registration>, Vec<Registration>) {
    registrations.iter().cloned().partition(|registration| match registration.provider {
        Provider::Nomad => true,
        Provider::Consul => false,
    })
}
