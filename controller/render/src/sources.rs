//! Where the data of templates comes from.
//!
//! In: a query, and the task that asks. Out: the answer as of now. Each task reads with its own rights, and each read of
//! a variable has its line in the audit. Nothing here waits for data to appear: see [`crate::watches`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{service::Registration, variable::VariableKey};
use herdlet_runtime::off_thread;
use herdlet_services::catalog::BuiltIn;
use herdlet_template::{
    Answer, Choice, NodeAddress, Query, ServiceInstance, ServiceName, Variable, VariableMeta,
    source::unavailable,
};
use herdlet_variables::{
    Variables,
    access::{TaskIdentity, may_read, readable},
    service::Actor,
};
use sha2::{Digest as _, Sha256};

use crate::region::{AccessToken, Region};

/// The task that reads data, as its workload identity names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    pub namespace: String,
    /// The job; for a child, its parent.
    pub job: String,
    pub group: String,
    pub task: String,
    /// For the audit.
    pub alloc: String,
    pub access: Access,
    pub consul: ConsulRights,
}

/// Whose keys and services a task reads, and with which token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsulRights {
    /// The name of a Consul in the agent's config.
    pub cluster: String,
    /// The namespace; that of the config if empty.
    pub namespace: String,
    /// The partition; that of Consul's agent if empty.
    pub partition: String,
    /// The task's token; the agent's own if empty.
    pub token: AccessToken,
}

/// Whose variables and services a task reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// This agent's.
    Agent,
    /// Those of the cluster's servers, which have placed the allocation.
    Servers { token: AccessToken },
}

/// The sources of an agent.
pub struct Sources {
    pub variables: Arc<Variables>,
    pub catalogue: Arc<BuiltIn>,
    /// The node's names, in entries of services.
    pub node: NodeNames,
    /// Consul, by its name in the config.
    pub consuls: BTreeMap<String, Arc<dyn Region>>,
}

/// Names of this node.
#[derive(Debug, Clone, Default)]
pub struct NodeNames {
    pub id: String,
    pub datacenter: String,
}

impl Sources {
    /// Answers a query.
    ///
    /// # Errors
    /// Why the source does not answer now: it is asked again.
    pub async fn answer(&self, query: &Query, reader: &Reader) -> Result<Answer, String> {
        Ok(match query {
            Query::Addresses => addresses().await?,
            Query::NomadVariable { path, namespace, .. } => self.variable(path, namespace, reader).await?,
            Query::NomadVariables { prefix, namespace, .. } => self.variables(prefix, namespace, reader),
            Query::NomadService { name, tag, choice, .. } => {
                self.service((name, tag), choice.as_ref(), &reader.namespace)
            }
            Query::NomadServices { .. } => self.services(&reader.namespace),
            // The renderer itself answers the first two.
            Query::Env { .. } | Query::File { .. } | Query::Consul { .. } | Query::Vault { .. } => {
                Answer::Failed(unavailable(query))
            }
        })
    }

    async fn variable(&self, path: &str, namespace: &str, reader: &Reader) -> Result<Answer, String> {
        let namespace = or(namespace, &reader.namespace);
        let key = VariableKey { namespace: namespace.to_owned(), path: path.to_owned() };
        let actor = reader.actor();
        if !may_read(reader.identity(), namespace, path) {
            self.variables.refused(&actor, "read", &key, "refused: no right");
            return Ok(Answer::Failed(format!(
                "nomadVar {path}: the task may read only nomad/jobs and the variables of its job, group and task below nomad/jobs/{} in namespace {}",
                reader.job, reader.namespace
            )));
        }
        match self.variables.read(&actor, key).await {
            Ok(None) => Ok(Answer::Absent),
            Ok(Some(found)) => {
                let items = found.items.unwrap_or_default().0;
                Ok(Answer::Variable(Arc::new(Variable { meta: meta(&found.metadata), items })))
            }
            // A key file or a damaged variable may be restored, and a device may answer again.
            Err(error) => Err(error.to_string()),
        }
    }

    /// The variables below a prefix that the task may read; others do not exist for it, as in Nomad.
    fn variables(&self, prefix: &str, namespace: &str, reader: &Reader) -> Answer {
        let namespace = or(namespace, &reader.namespace);
        self.variables.listed(&reader.actor(), namespace, prefix);
        let mut listed = self.variables.store().list_of(&readable(reader.identity()));
        listed.retain(|meta| meta.namespace == namespace && meta.path.starts_with(prefix));
        Answer::Variables(listed.iter().map(meta).collect())
    }

    fn service(&self, (name, tag): (&str, &str), choice: Option<&Choice>, namespace: &str) -> Answer {
        let is_wanted = |one: &Registration| {
            *one.job.namespace == *namespace
                && one.name == name
                && (tag.is_empty() || one.tags.iter().any(|own| own == tag))
        };
        let mut found: Vec<ServiceInstance> =
            self.catalogue.select(is_wanted).into_iter().map(|one| self.instance(one)).collect();
        if let Some(choice) = choice {
            found = chosen(found, choice);
        }
        Answer::Services(found.into())
    }

    fn services(&self, namespace: &str) -> Answer {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for one in self.catalogue.select(|one| *one.job.namespace == *namespace) {
            names.entry(one.name).or_default().extend(one.tags);
        }
        let names =
            names.into_iter().map(|(name, tags)| ServiceName { name, tags: tags.into_iter().collect() });
        Answer::ServiceNames(names.collect())
    }

    fn instance(&self, one: Registration) -> ServiceInstance {
        ServiceInstance {
            id: one.id,
            name: one.name,
            node: self.node.id.clone(),
            address: one.address,
            port: one.port,
            datacenter: self.node.datacenter.clone(),
            tags: one.tags,
            job_id: one.job.id.to_string(),
            alloc_id: one.alloc.to_string(),
        }
    }
}

impl Reader {
    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity { namespace: &self.namespace, job: &self.job, group: &self.group, task: &self.task }
    }

    fn actor(&self) -> Actor {
        Actor::client(format_args!("task {} of {}", self.task, self.alloc))
    }
}

/// The part of an answer about a service that its query selects.
pub fn selected(answer: Answer, query: &Query) -> Answer {
    let (Answer::Services(list), Query::NomadService { tag, choice, .. }) = (&answer, query) else {
        return answer;
    };
    let is_wanted = |one: &&ServiceInstance| tag.is_empty() || one.tags.iter().any(|own| own == tag);
    let found: Vec<ServiceInstance> = list.iter().filter(is_wanted).cloned().collect();
    Answer::Services(match choice {
        Some(choice) => chosen(found, choice).into(),
        None => found.into(),
    })
}

/// Instances by rendezvous hashing: the same key gets the same ones as long as they exist.
fn chosen(mut instances: Vec<ServiceInstance>, choice: &Choice) -> Vec<ServiceInstance> {
    let weight = |instance: &ServiceInstance| {
        Sha256::new().chain_update(&choice.key).chain_update([0]).chain_update(&instance.id).finalize()
    };
    instances.sort_by_cached_key(weight);
    instances.truncate(choice.count);
    instances.sort_by(|one, other| one.id.cmp(&other.id));
    instances
}

/// The addresses of this machine.
async fn addresses() -> Result<Answer, String> {
    let listing = off_thread(herdlet_fingerprint::interfaces).await.map_err(|error| error.to_string())?;
    let found = listing.map_err(|error| format!("list the interfaces of this machine: {error}"))?;
    let addresses = found.iter().flat_map(|interface| {
        interface.addresses.iter().map(|(address, prefix)| NodeAddress {
            interface: interface.name.clone(),
            address: *address,
            prefix: *prefix,
            is_up: interface.is_up,
            is_default: interface.is_default,
        })
    });
    Ok(Answer::Addresses(addresses.collect()))
}

fn meta(known: &herdlet_api_types::variable::VariableMetadata) -> VariableMeta {
    VariableMeta {
        namespace: known.namespace.clone(),
        path: known.path.clone(),
        create_index: known.create_index,
        modify_index: known.modify_index,
        create_time: known.create_time,
        modify_time: known.modify_time,
    }
}

fn or<'t>(text: &'t str, default: &'t str) -> &'t str {
    if text.is_empty() { default } else { text }
}
