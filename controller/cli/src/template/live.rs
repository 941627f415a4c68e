//! Data of an agent for a template: variables and services that the user may read, and the environment and files of a task.
//!
//! In: queries of a render. Out: answers. Data that flags give takes precedence, and is not asked for. Rounds are bounded: each
//! asks for what the last one has found.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::StreamExt as _;
use herdlet_api_types::{
    AllocId,
    job::Lifecycle,
    variable::{VariableKey, VariableMetadata},
};
use herdlet_template::{
    Answer, Query, Render, ServiceInstance, ServiceName, Source, Template, Variable, VariableMeta,
    source::Fixed,
};

use crate::{
    client::{CatalogueInstance, CatalogueService, Client, ClientError},
    failure::{Failure, USAGE},
    target,
};

/// Bytes of a file that a template reads.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Queries of one template.
const QUERIES_MAX: usize = 1_024;

/// Data of flags and of an agent.
pub(super) struct Live {
    pub given: Fixed,
    pub client: Client,
    pub namespace: String,
    /// The task that the template is rendered for.
    place: Option<Place>,
    known: BTreeMap<Query, Answer>,
}

/// A task of an allocation.
pub(super) struct Place {
    pub namespace: String,
    alloc: AllocId,
    task: String,
    env: BTreeMap<String, String>,
}

impl Place {
    /// The only task that `text` names, or the only main task.
    ///
    /// # Errors
    /// If there is none or there are several, or the agent can't be asked.
    pub(super) async fn find(client: &Client, text: &str) -> Result<Self, Failure> {
        let target = target::find(client, text).await?;
        let tasks: Vec<_> = target.tasks().collect();
        let mains = tasks.iter().filter(|(view, task)| {
            view.spec.task(&task.name).is_some_and(|task| task.lifecycle == Lifecycle::Main)
        });
        let mains: Vec<_> = mains.copied().collect();
        let (view, task) = match (tasks.as_slice(), mains.as_slice()) {
            ([one], _) | (_, [one]) => *one,
            ([], _) => return Err(Failure::new(format!("{text} has no allocation yet"))),
            (several, _) => {
                let names: Vec<String> =
                    several.iter().map(|(view, task)| view.spec.task_title(&task.name)).collect();
                let failure = Failure::new(format!("{text} has {} tasks; name one", names.len()));
                return Err(failure.code(USAGE).hint(format!("available: {}", names.join(", "))));
            }
        };
        let env = client.environment(view.spec.id, &task.name).await?;
        Ok(Self {
            namespace: view.spec.job_key.namespace.to_string(),
            alloc: view.spec.id,
            task: task.name.to_string(),
            env,
        })
    }

    /// A file, as a template of the task names it.
    async fn file(&self, client: &Client, path: &str) -> Result<Answer, Failure> {
        let path = match path.strip_prefix('/') {
            None => format!("{}/{path}", self.task),
            Some(_) => {
                return Ok(Answer::Failed(format!("file: {path:?} is not relative to the task's directory")));
            }
        };
        let mut pieces = match client.read_file(self.alloc, &path).await {
            Ok(pieces) => pieces,
            Err(ClientError::Status { status: 404, .. }) => return Ok(Answer::Absent),
            Err(error) => return Ok(Answer::Failed(format!("file: {error}"))),
        };
        let mut content = Vec::new();
        while let Some(piece) = pieces.next().await {
            content.extend(piece?);
            if content.len() > FILE_BYTES_MAX {
                return Ok(Answer::Failed(format!("file: {path:?} has more than {FILE_BYTES_MAX} bytes")));
            }
        }
        Ok(Answer::Text(content.as_slice().into()))
    }
}

impl Source for Live {
    fn answer(&self, query: &Query) -> Answer {
        let given = self.given.answer(query);
        if let (Query::Env { name }, Some(place), Answer::Absent) = (query, &self.place, &given)
            && let Some(value) = place.env.get(name)
        {
            return Answer::Text(value.as_bytes().into());
        }
        if self.is_asked_for(query) && matches!(given, Answer::Pending | Answer::Absent | Answer::Failed(_)) {
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
        Self { given, client, namespace, place: None, known: BTreeMap::new() }
    }

    /// Renders for a task.
    pub(super) fn at(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// Whether the agent has such data.
    fn is_asked_for(&self, query: &Query) -> bool {
        match query {
            Query::NomadVariable { .. }
            | Query::NomadVariables { .. }
            | Query::NomadService { .. }
            | Query::NomadServices { .. } => true,
            Query::File { .. } => self.place.is_some(),
            Query::Env { .. } | Query::Addresses | Query::Consul { .. } | Query::Vault { .. } => false,
        }
    }

    /// Renders until every query has an answer.
    ///
    /// # Errors
    /// If the agent can't be asked.
    pub(super) async fn render(&mut self, template: &Template) -> Result<Render, Failure> {
        loop {
            let render = template.render(self);
            let is_open = |query: &&Query| {
                self.is_asked_for(query)
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
            Query::File { path } => match &self.place {
                Some(place) => place.file(&self.client, path).await?,
                None => self.given.answer(query),
            },
            Query::Env { .. } | Query::Addresses | Query::Consul { .. } | Query::Vault { .. } => {
                self.given.answer(query)
            }
        })
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
