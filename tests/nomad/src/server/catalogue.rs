//! Methods for variables (1.4 and later) and services (1.3 and later).

use herdlet_nomad::wire::{
    QueryOptions,
    catalogue::{
        ServiceRequest, ServiceResponse, ServicesRequest, ServicesResponse, VariableRequest,
        VariableResponse, VariablesRequest, VariablesResponse,
    },
};
use herdlet_rpc::{
    error::Refusal,
    serve::{Call, answer},
};

use super::{Answer, Server, refuse};
use crate::{fields::Fields, inner::lock, state::State};

impl Server {
    pub(super) async fn variable(&self, call: &Call) -> Answer {
        self.has((1, 4))?;
        self.keep(call);
        let VariableRequest { path, options } = call.arguments()?;
        let namespace = namespace(&options);
        let may_read = lock(&self.cluster.state).may_read(&options.auth_token, &namespace, &path);
        self.allow(may_read)?;
        let key = (namespace, path);
        let index = |state: &State| state.variable(&key).0;
        let (meta, data) = self.blocking(&options, index, |state| state.variable(&key).1).await?;
        answer(&VariableResponse { data, meta })
    }

    pub(super) async fn variables(&self, call: &Call) -> Answer {
        self.has((1, 4))?;
        self.keep(call);
        let VariablesRequest { prefix, options } = call.arguments()?;
        let namespace = namespace(&options);
        let token = self.cluster.settings.tokens.then_some(&options.auth_token);
        let listed = |state: &State| state.variables(&namespace, &prefix, token);
        let (meta, data) = self.blocking(&options, State::variables_index, listed).await?;
        answer(&VariablesResponse { data, meta })
    }

    pub(super) async fn instances(&self, call: &Call) -> Answer {
        self.has((1, 3))?;
        self.keep(call);
        let ServiceRequest { service_name, options } = call.arguments()?;
        if service_name.is_empty() {
            return refuse("missing service name");
        }
        let namespace = self.readable_namespace(&options)?;
        let found = |state: &State| {
            let instances = state.instances(&namespace).filter(|one| one.service_name == service_name);
            instances.cloned().collect()
        };
        let (meta, services) = self.blocking(&options, State::services_index, found).await?;
        answer(&ServiceResponse { services, meta })
    }

    pub(super) async fn services(&self, call: &Call) -> Answer {
        self.has((1, 3))?;
        self.keep(call);
        let ServicesRequest { options } = call.arguments()?;
        let namespace = self.readable_namespace(&options)?;
        let found = |state: &State| state.services_of(&namespace);
        let (meta, services) = self.blocking(&options, State::services_index, found).await?;
        answer(&ServicesResponse { services, meta })
    }

    /// Every task may read the services of its namespace.
    fn readable_namespace(&self, options: &QueryOptions) -> Result<String, Refusal> {
        let namespace = namespace(options);
        let may_read = lock(&self.cluster.state).namespace_of(&options.auth_token) == Some(&namespace);
        self.allow(may_read)?;
        Ok(namespace)
    }

    /// Whether servers of this release have the method.
    fn has(&self, since: (u8, u8)) -> Result<(), Refusal> {
        match self.cluster.settings.fields {
            Fields::Of(major, minor) if (major, minor) < since => Err(Refusal::UnknownService),
            Fields::Of(..) | Fields::Known | Fields::New => Ok(()),
        }
    }
}

fn namespace(options: &QueryOptions) -> String {
    if options.namespace.is_empty() { "default".to_owned() } else { options.namespace.clone() }
}
