//! The facts about this machine as they are now: attributes of drivers come and go while the agent runs.

use std::sync::{Arc, PoisonError, RwLock};

use herdlet_plan::env::NodeFacts;

/// The current facts. Clones share them.
#[derive(Debug, Clone)]
pub struct CurrentNode(Arc<RwLock<Arc<NodeFacts>>>);

impl CurrentNode {
    pub fn new(facts: NodeFacts) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(facts))))
    }

    pub fn get(&self) -> Arc<NodeFacts> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, facts: NodeFacts) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }
}
