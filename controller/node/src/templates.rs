//! Variables and services of the cluster's servers, for templates of their jobs.
//!
//! In: one read, with the token of a task. Out: the data as templates use it, with its index. Watches nothing by itself
//! ([`herdlet_render::servers`]).
//!
//! Facts: `hashicorp/nomad:nomad/variables_endpoint.go`, `nomad/service_registration_endpoint.go`.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_nomad::{
    session::{Newer as WireNewer, Queries},
    wire::{
        QueryMeta, QueryOptions, Secret,
        catalogue::{
            self, ServiceRequest, ServiceResponse, ServicesRequest, ServicesResponse, VariableRequest,
            VariableResponse, VariableStub, VariablesRequest, VariablesResponse,
        },
    },
};
use herdlet_render::region::{Newer, Region, RegionAnswer, RegionError, RegionRequest};
use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use herdlet_template::{
    Answer, Query, ServiceInstance, ServiceName, Variable, VariableMeta, source::unavailable,
};
use serde::{Serialize, de::DeserializeOwned};

/// Time limit for an answer: a little less than that of an operation, as for identities.
const WITHIN: Duration = Duration::from_secs(8);

/// The first release with variables.
const VARIABLES: &str = "1.4";

/// The first release with services.
const SERVICES: &str = "1.3";

/// The servers of a session as a source of templates.
pub struct ServerData<S, D>(pub Queries<S, D>);

impl<S: Service, D: Dial> Region for ServerData<S, D> {
    fn read(&self, request: RegionRequest) -> BoxFuture<'static, Result<RegionAnswer, RegionError>> {
        let queries = self.0.clone();
        async move { read(&queries, &request).await }.boxed()
    }
}

async fn read<S: Service, D: Dial>(
    queries: &Queries<S, D>,
    request: &RegionRequest,
) -> Result<RegionAnswer, RegionError> {
    let options = |options| with_options(options, request);
    let call = Call { queries, newer: request.newer };
    match &request.query {
        Query::NomadVariable { path, .. } => {
            let wire = |given| VariableRequest { path: path.clone(), options: options(given) };
            let found: VariableResponse = call.ask("Variables.Read", VARIABLES, wire).await?;
            let answer =
                found.data.map_or(Answer::Absent, |found| Answer::Variable(Arc::new(variable(found))));
            Ok(with_index(&found.meta, answer))
        }
        Query::NomadVariables { prefix, .. } => {
            let wire = |given| VariablesRequest { prefix: prefix.clone(), options: options(given) };
            let found: VariablesResponse = call.ask("Variables.List", VARIABLES, wire).await?;
            Ok(with_index(&found.meta, Answer::Variables(found.data.iter().map(stub).collect())))
        }
        Query::NomadService { name, .. } => {
            let wire = |given| ServiceRequest { service_name: name.clone(), options: options(given) };
            let found: ServiceResponse = call.ask("ServiceRegistration.GetService", SERVICES, wire).await?;
            let mut instances: Vec<ServiceInstance> = found.services.into_iter().map(instance).collect();
            instances.sort_by(|one, other| one.id.cmp(&other.id));
            Ok(with_index(&found.meta, Answer::Services(instances.into())))
        }
        Query::NomadServices { .. } => {
            let wire = |given| ServicesRequest { options: options(given) };
            let found: ServicesResponse = call.ask("ServiceRegistration.List", SERVICES, wire).await?;
            let services = found.services.into_iter().flat_map(|namespace| namespace.services);
            let mut names: Vec<ServiceName> = services
                .map(|service| {
                    let mut tags = service.tags;
                    tags.sort_unstable();
                    ServiceName { name: service.service_name, tags }
                })
                .collect();
            names.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(with_index(&found.meta, Answer::ServiceNames(names.into())))
        }
        query @ (Query::Env { .. }
        | Query::File { .. }
        | Query::Addresses
        | Query::Consul { .. }
        | Query::Vault { .. }) => Err(RegionError::Failed(unavailable(query))),
    }
}

/// A call to servers.
struct Call<'q, S, D> {
    queries: &'q Queries<S, D>,
    newer: Newer,
}

impl<S: Service, D: Dial> Call<'_, S, D> {
    async fn ask<T: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        since: &'static str,
        request: impl Fn(QueryOptions) -> T,
    ) -> Result<R, RegionError> {
        let (newer, within) = match self.newer {
            Newer::Now => (WireNewer::Now, WITHIN),
            // Servers may add a sixteenth, and the session waits for a permit as long as for servers.
            Newer::Than { index, block } => {
                (WireNewer::Within { index, block }, block * 2 + block / 16 + WITHIN)
            }
        };
        let asked = tokio::time::timeout(within, self.queries.ask(method, newer, request)).await;
        asked.unwrap_or(Err(CallError::Late(within))).map_err(|error| meaning(error, since))
    }
}

fn with_options(options: QueryOptions, request: &RegionRequest) -> QueryOptions {
    let region = match &request.query {
        Query::NomadVariable { region, .. }
        | Query::NomadVariables { region, .. }
        | Query::NomadService { region, .. }
        | Query::NomadServices { region }
            if !region.is_empty() =>
        {
            region.clone()
        }
        Query::NomadVariable { .. }
        | Query::NomadVariables { .. }
        | Query::NomadService { .. }
        | Query::NomadServices { .. }
        | Query::Env { .. }
        | Query::File { .. }
        | Query::Addresses
        | Query::Consul { .. }
        | Query::Vault { .. } => options.region.clone(),
    };
    QueryOptions {
        region,
        namespace: request.namespace.clone(),
        // Never the node's own token: a task must not read more than its identity allows.
        auth_token: Secret::from(request.token.reveal()),
        ..options
    }
}

fn with_index(meta: &QueryMeta, answer: Answer) -> RegionAnswer {
    let last_contact = Duration::from_nanos(u64::try_from(meta.last_contact).unwrap_or_default());
    RegionAnswer { index: meta.index, answer, last_contact }
}

fn meaning(error: CallError, since: &'static str) -> RegionError {
    let CallError::Server(refused) = &error else {
        return match error {
            CallError::Message(_) if !error.is_lost() => RegionError::Failed(format!("failed to {error}")),
            CallError::Server(_)
            | CallError::NoServers
            | CallError::Unreachable(_)
            | CallError::NotSent(_)
            | CallError::NoRoom(_)
            | CallError::Lost(_)
            | CallError::Late(_)
            | CallError::Message(_)
            | CallError::Sequence { .. } => RegionError::Away(format!("failed to {error}")),
        };
    };
    let text = refused.to_string();
    match refused.kind() {
        ErrorKind::NoLeader | ErrorKind::NotReady | ErrorKind::Transport => RegionError::Away(text),
        ErrorKind::PermissionDenied | ErrorKind::Token => RegionError::Denied(text),
        ErrorKind::UnknownMethod => RegionError::TooOld(since),
        ErrorKind::Region
        | ErrorKind::NodeNotFound
        | ErrorKind::NodeSecret
        | ErrorKind::UnknownAllocation
        | ErrorKind::NoPathToNode
        | ErrorKind::Other => RegionError::Failed(text),
    }
}

fn variable(found: catalogue::Variable) -> Variable {
    let catalogue::Variable { namespace, path, create_index, create_time, modify_index, modify_time, items } =
        found;
    let items = items.into_iter().map(|(name, value)| (name, value.reveal().to_owned()));
    let meta = VariableMeta { namespace, path, create_index, modify_index, create_time, modify_time };
    Variable { meta, items: items.collect() }
}

fn stub(found: &VariableStub) -> VariableMeta {
    VariableMeta {
        namespace: found.namespace.clone(),
        path: found.path.clone(),
        create_index: found.create_index,
        modify_index: found.modify_index,
        create_time: found.create_time,
        modify_time: found.modify_time,
    }
}

fn instance(found: catalogue::ServiceInstance) -> ServiceInstance {
    ServiceInstance {
        id: found.id,
        name: found.service_name,
        node: found.node_id.to_string(),
        address: found.address,
        port: u16::try_from(found.port).unwrap_or_default(),
        datacenter: found.datacenter,
        tags: found.tags,
        job_id: found.job_id,
        alloc_id: found.alloc_id.to_string(),
    }
}

#[cfg(test)]
mod tests;
