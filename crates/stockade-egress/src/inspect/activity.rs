//! How long an inspected connection may do nothing, or too little.
//!
//! A client has a few seconds for a request head, some more between requests,
//! and minutes while a body flows; whoever takes longer makes room for others
//! (slowloris). Only the clock is here: what ends a connection is its server.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// For the first request, and for the rest of a head that has begun.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Between requests.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(120);
/// While a request is served and no byte of a body moves.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(600);
/// How often the clock is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The clock of one connection from inside.
pub struct Activity {
    began: Instant,
    requests: Cell<u64>,
    active: Cell<usize>,
    moved: Cell<Instant>,
    abandoned: Cell<u32>,
    enough: Notify,
    head: Arc<HeadClock>,
}

/// When the head that is being read began: milliseconds after `began`, plus
/// one; 0 for none. Shared with the stream, which may have to move between
/// threads for the sake of upgrades.
pub struct HeadClock {
    began: Instant,
    since: AtomicU64,
    serving: AtomicU64,
}

/// Requests of one connection that a client may take back before they are
/// answered: each costs the origin more than it costs the client
/// (CVE-2023-44487).
const ABANDONED_MAX: u32 = 200;

/// Counts a request as abandoned when it is dropped before
/// [`Abandonment::answered`].
pub struct Abandonment(Option<Rc<Activity>>);

/// Held while a request is served.
pub struct Serving {
    activity: Rc<Activity>,
}

impl Activity {
    pub fn new() -> Rc<Self> {
        let began = Instant::now();
        Rc::new(Self {
            began,
            requests: Cell::new(0),
            active: Cell::new(0),
            moved: Cell::new(began),
            abandoned: Cell::new(0),
            enough: Notify::new(),
            head: Arc::new(HeadClock {
                began,
                since: AtomicU64::new(0),
                serving: AtomicU64::new(0),
            }),
        })
    }

    /// For the stream of HTTP/1.1, where nothing but a head can come between
    /// requests.
    pub fn head(&self) -> Arc<HeadClock> {
        Arc::clone(&self.head)
    }

    /// A request was read.
    pub fn begin(self: &Rc<Self>) -> Serving {
        self.requests.set(self.requests.get() + 1);
        self.active.set(self.active.get() + 1);
        self.head.since.store(0, Ordering::Relaxed);
        self.head.serving.fetch_add(1, Ordering::Relaxed);
        self.moved.set(Instant::now());
        Serving {
            activity: Rc::clone(self),
        }
    }

    /// Ends [`Activity::expired`] now.
    pub fn close(&self) {
        self.enough.notify_one();
    }

    /// A part of a body moved.
    pub fn touch(&self) {
        self.moved.set(Instant::now());
    }

    /// Ends once the connection has done too little for too long.
    pub async fn expired(&self) {
        loop {
            let deadline = self.deadline();
            let now = Instant::now();
            if now >= deadline {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline.min(now + LOOK)) => {}
                () = self.enough.notified() => return,
            }
        }
    }

    fn deadline(&self) -> Instant {
        if self.active.get() > 0 {
            return self.moved.get() + STALL_TIME_MAX;
        }
        if self.requests.get() == 0 {
            return self.began + HEAD_TIME_MAX;
        }
        let idle = self.moved.get() + IDLE_TIME_MAX;
        match self.head.since.load(Ordering::Relaxed) {
            0 => idle,
            since => idle.min(self.began + Duration::from_millis(since) + HEAD_TIME_MAX),
        }
    }
}

impl Abandonment {
    pub fn new(activity: Rc<Activity>) -> Self {
        Self(Some(activity))
    }

    pub fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandonment {
    fn drop(&mut self) {
        let Some(activity) = &self.0 else {
            return;
        };
        let abandoned = activity.abandoned.get() + 1;
        activity.abandoned.set(abandoned);
        if abandoned > ABANDONED_MAX {
            activity.close();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let activity = &self.activity;
        activity.active.set(activity.active.get().saturating_sub(1));
        activity.head.serving.fetch_sub(1, Ordering::Relaxed);
        activity.touch();
    }
}

impl Serving {
    pub fn touch(&self) {
        self.activity.touch();
    }
}

impl HeadClock {
    /// A part of a head came.
    pub fn bytes_came(&self) {
        if !self.is_serving() && self.since.load(Ordering::Relaxed) == 0 {
            let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
            self.since.store(passed + 1, Ordering::Relaxed);
        }
    }

    /// The head is complete, or none has begun.
    pub fn head_ended(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed) > 0
    }
}
