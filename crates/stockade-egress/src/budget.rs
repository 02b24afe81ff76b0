//! Budgets: bytes each way, connections at one time, requests a minute.
//!
//! Each rule with a budget has an account, and so has the whole sandbox. A
//! connection charges all accounts of its rules, and the one that is used up
//! first ends it. Accounts live as long as the run: a reload that states the
//! same rule keeps what was used.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use stockade_policy::network::judge::Denial;
use stockade_policy::network::rules::Budget;

const WINDOW: Duration = Duration::from_secs(60);

/// All accounts of the sandbox.
#[derive(Default)]
pub struct Budgets {
    accounts: RefCell<HashMap<String, Rc<Account>>>,
}

/// What was used of one budget.
#[derive(Default)]
struct Account {
    uploaded: Cell<u64>,
    downloaded: Cell<u64>,
    open: Cell<u64>,
    window: Cell<Option<(Instant, u64)>>,
}

/// One connection's share of the accounts; gives its places back on drop.
pub struct Charge {
    lines: RefCell<Vec<Line>>,
}

struct Line {
    name: String,
    account: Rc<Account>,
    budget: Budget,
    /// Counts as an open connection of the account.
    open: bool,
}

impl Budgets {
    /// Opens a connection under budgets, each with the name of its account.
    pub fn open(&self, budgets: &[(String, Budget)]) -> Result<Charge, Denial> {
        let lines = budgets
            .iter()
            .map(|(name, budget)| self.line(name, *budget));
        let mut lines: Vec<Line> = lines.collect();
        for line in &lines {
            if let Some(limit) = line.budget.connections_max
                && line.account.open.get() >= limit
            {
                return Err(used_up(
                    &line.name,
                    &format!("{limit} connections at one time"),
                ));
            }
            line.check_bytes()?;
        }
        for line in &mut lines {
            line.account.open.set(line.account.open.get() + 1);
            line.open = true;
        }
        Ok(Charge {
            lines: RefCell::new(lines),
        })
    }

    fn line(&self, name: &str, budget: Budget) -> Line {
        let mut accounts = self.accounts.borrow_mut();
        let account = match accounts.get(name) {
            Some(account) => account.clone(),
            None => accounts.entry(name.to_owned()).or_default().clone(),
        };
        Line {
            name: name.to_owned(),
            account,
            budget,
            open: false,
        }
    }

    /// Adds the accounts of the rules that permit a request, if they are not
    /// charged already, and counts the request against all of them.
    pub fn request(&self, charge: &Charge, rules: &[(String, Budget)]) -> Result<(), Denial> {
        for (name, budget) in rules {
            let known = charge.lines.borrow().iter().any(|line| line.name == *name);
            if !known {
                let line = self.line(name, *budget);
                charge.lines.borrow_mut().push(line);
            }
        }
        let now = Instant::now();
        let lines = charge.lines.borrow();
        for line in lines.iter() {
            line.check_rate(now)?;
            line.check_bytes()?;
        }
        for line in lines.iter() {
            line.account.count_request(now);
        }
        Ok(())
    }
}

impl Charge {
    /// Counts bytes that go out.
    pub fn uploaded(&self, bytes: u64) -> Result<(), Denial> {
        self.move_bytes(|account| &account.uploaded, bytes)
    }

    /// Counts bytes that come in.
    pub fn downloaded(&self, bytes: u64) -> Result<(), Denial> {
        self.move_bytes(|account| &account.downloaded, bytes)
    }

    fn move_bytes(&self, side: impl Fn(&Account) -> &Cell<u64>, bytes: u64) -> Result<(), Denial> {
        let mut verdict = Ok(());
        for line in self.lines.borrow().iter() {
            let cell = side(&line.account);
            cell.set(cell.get().saturating_add(bytes));
            if verdict.is_ok() {
                verdict = line.check_bytes();
            }
        }
        verdict
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for line in self.lines.borrow().iter().filter(|line| line.open) {
            line.account.open.set(line.account.open.get() - 1);
        }
    }
}

impl Line {
    fn check_bytes(&self) -> Result<(), Denial> {
        for (limit, used, what) in [
            (
                self.budget.upload_bytes_max,
                self.account.uploaded.get(),
                "uploaded",
            ),
            (
                self.budget.download_bytes_max,
                self.account.downloaded.get(),
                "downloaded",
            ),
        ] {
            if let Some(limit) = limit
                && used > limit
            {
                return Err(used_up(&self.name, &format!("{limit} bytes {what}")));
            }
        }
        Ok(())
    }

    fn check_rate(&self, now: Instant) -> Result<(), Denial> {
        let Some(limit) = self.budget.requests_per_minute else {
            return Ok(());
        };
        let used = match self.account.window.get() {
            Some((start, count)) if now.duration_since(start) < WINDOW => count,
            _ => 0,
        };
        if used < limit {
            return Ok(());
        }
        let mut denial = used_up(&self.name, &format!("{limit} requests a minute"));
        denial.code = "rate";
        Err(denial)
    }
}

impl Account {
    fn count_request(&self, now: Instant) {
        let window = match self.window.get() {
            Some((start, count)) if now.duration_since(start) < WINDOW => (start, count + 1),
            _ => (now, 1),
        };
        self.window.set(Some(window));
    }
}

fn used_up(name: &str, what: &str) -> Denial {
    Denial {
        code: "budget",
        rule: name.to_owned(),
        origin: String::new(),
        reason: format!("the budget of {name} is used up: {what}"),
        smallest_grant: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(upload: u64) -> Budget {
        Budget {
            upload_bytes_max: Some(upload),
            ..Budget::default()
        }
    }

    #[test]
    fn row_56_an_upload_budget_spans_connections_and_ends_the_one_that_passes_it() {
        let budgets = Budgets::default();
        let rules = [("network.rule[0]".to_owned(), bytes(100))];
        let first = budgets.open(&rules).unwrap();
        assert!(first.uploaded(60).is_ok());
        drop(first);
        let second = budgets.open(&rules).unwrap();
        assert!(second.uploaded(40).is_ok());
        let denial = second.uploaded(1).unwrap_err();
        assert_eq!(denial.code, "budget");
        assert!(budgets.open(&rules).is_err());
        // Another rule has its own.
        let other = [("network.rule[1]".to_owned(), bytes(100))];
        assert!(budgets.open(&other).is_ok());
    }

    #[test]
    fn a_connection_gives_its_place_back() {
        let budgets = Budgets::default();
        let one = Budget {
            connections_max: Some(1),
            ..Budget::default()
        };
        let one = [("network.connections".to_owned(), one)];
        let first = budgets.open(&one).unwrap();
        assert!(budgets.open(&one).is_err());
        drop(first);
        assert!(budgets.open(&one).is_ok());
    }

    #[test]
    fn requests_are_limited_by_the_minute() {
        let budgets = Budgets::default();
        let rules = [(
            "r".to_owned(),
            Budget {
                requests_per_minute: Some(2),
                ..Budget::default()
            },
        )];
        let charge = budgets.open(&[]).unwrap();
        assert!(budgets.request(&charge, &rules).is_ok());
        assert!(budgets.request(&charge, &rules).is_ok());
        assert_eq!(budgets.request(&charge, &rules).unwrap_err().code, "rate");
    }
}
