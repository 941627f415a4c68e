//! Values that record their changes.

/// A value that records that it was changed, so that a turn writes exactly what it changed.
#[derive(Debug, Clone, Default)]
pub struct Tracked<T> {
    value: T,
    touched: bool,
}

impl<T> Tracked<T> {
    /// A value that must be written.
    pub fn new(value: T) -> Self {
        Self { value, touched: true }
    }

    /// A value as read from the database.
    pub fn stored(value: T) -> Self {
        Self { value, touched: false }
    }

    /// Whether it changed since the last call.
    pub fn take_touched(&mut self) -> bool {
        core::mem::take(&mut self.touched)
    }

    /// Returns the value for a change that need not be written by itself: it is written with the next tracked change.
    pub fn get_mut_untracked(&mut self) -> &mut T {
        &mut self.value
    }

    /// Whether it changed and the change was not taken.
    pub fn is_touched(&self) -> bool {
        self.touched
    }
}

impl<T> core::ops::Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> core::ops::DerefMut for Tracked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}
