//! Data of an agent for a template: variables and services that the user may read.
//!
//! In: queries of a render. Out: answers. Data that flags give takes precedence, and is not asked for. Rounds are bounded: each
//! asks for what the last one has found.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::variable::{VariableKey, VariableMetadata};
use herdlet_template::{
    Answer, Query, Render, ServiceInstance, ServiceName, Source, Template, Variable, VariableMeta,
    source::Fixed,
};

use crate::{
    client::{CatalogueInstance, CatalogueService, Client},
    failure::Failure,
};

/// Queries of one template.
const QUERIES_MAX: usize = 1_024;

/// Data of flags and of an agent.
pub(super) struct Live {
    pub given: Fixed,
    pub client: Client,
    pub namespace: String,
    known: BTreeMap<Query, Answer>,
}

impl Source for Live {
    fn answer(&self, query: &Query) -> Answer {
        let given = self.given.answer(query);
        if is_of_agents(query) && matches!(given, Answer::Pending | Answer::Absent | Answer::Failed(_)) {
            return self.known.get(query).cloned().unwrap_or(Answer::Pending);
        }
        given
    }

    fn unix_time(&self) -> Option<i64> {
        self.given.unix_time()
    }
}

impl Live {
    pub(super) fn new(given: Fixed, client: Client, namespace: String) -> Self {
        Self { given, client, namespace, known: BTreeMap::new() }
    }

    /// Renders until every query has an answer.
    ///
    /// # Errors
    /// If the agent can't be asked.
    pub(super) async fn render(&mut self, template: &Template) -> Result<Render, Failure> {
        loop {
            let render = template.render(self);
            let is_open = |query: &&Query| {
                is_of_agents(query)
                    && !self.known.contains_key(*query)
                    && matches!(self.answer(query), Answer::Pending)
            };
            let open: Vec<Query> = render.used.iter().filter(is_open).cloned().collect();
            if open.is_empty() {
                return Ok(render);
            }
            if self.known.len() + open.len() > QUERIES_MAX {
                return Err(Failure::new(format!("the template asks for more than {QUERIES_MAX} data")));
            }
            for query in open {
                let answer = self.ask(&query).await?;
                self.known.insert(query, answer);
            }
        }
    }

    async fn ask(&self, query: &Query) -> Result<Answer, Failure> {
        let in_namespace =
            |given: &String| if given.is_empty() { self.namespace.clone() } else { given.clone() };
        Ok(match query {
            Query::NomadVariable { path, namespace, .. } => {
                let key = VariableKey { namespace: in_namespace(namespace), path: path.clone() };
                match self.client.variable(&key).await? {
                    Some(found) => Answer::Variable(Arc::new(Variable {
                        meta: meta(&found.metadata),
                        items: found.items.unwrap_or_default().0,
                    })),
                    None => Answer::Absent,
                }
            }
            Query::NomadVariables { prefix, namespace, .. } => {
                let found = self.client.variables(&in_namespace(namespace), prefix, "").await?;
                Answer::Variables(found.iter().map(meta).collect())
            }
            Query::NomadService { name, tag, .. } => {
                let found = self.client.catalogue_instances(&self.namespace, name).await?;
                let instances = found.into_iter().map(instance);
                Answer::Services(instances.filter(|one| tag.is_empty() || one.tags.contains(tag)).collect())
            }
            Query::NomadServices { .. } => {
                let found = self.client.catalogue_services(&self.namespace).await?;
                let name = |CatalogueService { service_name, tags }| ServiceName {
                    name: service_name,
                    tags: tags.unwrap_or_default(),
                };
                Answer::ServiceNames(found.into_iter().map(name).collect())
            }
            Query::Env { .. }
            | Query::File { .. }
            | Query::Addresses
            | Query::Consul { .. }
            | Query::Vault { .. } => self.given.answer(query),
        })
    }
}

/// Whether an agent has such data.
fn is_of_agents(query: &Query) -> bool {
    match query {
        Query::NomadVariable { .. }
        | Query::NomadVariables { .. }
        | Query::NomadService { .. }
        | Query::NomadServices { .. } => true,
        Query::Env { .. }
        | Query::File { .. }
        | Query::Addresses
        | Query::Consul { .. }
        | Query::Vault { .. } => false,
    }
}

fn instance(one: CatalogueInstance) -> ServiceInstance {
    ServiceInstance {
        id: one.id,
        name: one.service_name,
        node: one.node_id,
        address: one.address,
        port: one.port,
        datacenter: one.datacenter,
        tags: one.tags.unwrap_or_default(),
        job_id: one.job_id,
        alloc_id: one.alloc_id,
    }
}

fn meta(known: &VariableMetadata) -> VariableMeta {
    VariableMeta {
        namespace: known.namespace.clone(),
        path: known.path.clone(),
        create_index: known.create_index,
        modify_index: known.modify_index,
        create_time: known.create_time,
        modify_time: known.modify_time,
    }
}
