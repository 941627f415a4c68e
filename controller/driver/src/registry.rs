//! The drivers of this agent by name.

use std::{collections::BTreeMap, sync::Arc};

use super::TaskDriver;

/// The drivers of this agent. Made once at start.
#[derive(Clone, Default)]
pub struct Registry {
    drivers: BTreeMap<String, Arc<dyn TaskDriver>>,
}

impl Registry {
    /// No drivers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver under its own name; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, driver: Arc<dyn TaskDriver>) -> Self {
        self.drivers.insert(driver.name().to_owned(), driver);
        self
    }

    /// The driver with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn TaskDriver>> {
        self.drivers.get(name)
    }

    /// All drivers, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn TaskDriver>)> {
        self.drivers.iter().map(|(name, driver)| (name.as_str(), driver))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.drivers.keys()).finish()
    }
}
