//! The tasks of one inspected connection, which end with it.
//!
//! Without this, the drivers of connections to origins and the streams of
//! HTTP/2 would outlive a connection that a reload has closed.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use tokio::task::JoinSet;

/// Runs futures on this thread until [`TasksGuard`] is dropped.
#[derive(Clone, Default)]
pub struct Tasks {
    set: Rc<RefCell<JoinSet<()>>>,
}

/// Ends all tasks when dropped.
pub struct TasksGuard(Tasks);

impl Tasks {
    pub fn new() -> (Self, TasksGuard) {
        let tasks = Self::default();
        (tasks.clone(), TasksGuard(tasks))
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut set = self.set.borrow_mut();
        // Results of finished tasks are kept until somebody takes them.
        while set.try_join_next().is_some() {}
        set.spawn_local(task);
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

impl Drop for TasksGuard {
    fn drop(&mut self) {
        // A task that is dropped may drop what drops other tasks, so the set
        // is not borrowed meanwhile.
        let set = std::mem::take(&mut *self.0.set.borrow_mut());
        drop(set);
    }
}
