//! Names that are one file.

use std::collections::BTreeMap;

use super::Walk;
use crate::change::Origin;
use crate::tree::{FileKind, Identity};

impl Walk {
    /// Finds names that are one file, and files that are as they were but for
    /// their names.
    pub(super) fn find_links(&mut self) {
        let mut groups: BTreeMap<Identity, Vec<(bool, usize)>> = BTreeMap::new();
        let lists = [(false, &self.same_with_links), (true, &self.changes)];
        for (changed, list) in lists {
            for (index, change) in list.iter().enumerate() {
                let Some(source) = change.is.as_ref().filter(|source| source.links > 1) else {
                    continue;
                };
                if !change.is(FileKind::Directory) {
                    groups
                        .entry(source.identity)
                        .or_default()
                        .push((changed, index));
                }
            }
        }
        let mut regrouped = Vec::new();
        for members in groups.values() {
            let of = |&(changed, index): &(bool, usize)| match changed {
                true => &self.changes[index],
                false => &self.same_with_links[index],
            };
            let origins: Vec<_> = members
                .iter()
                .map(|member| of(member).was.as_ref())
                .collect();
            let one_before = origins[0].is_some_and(|first| {
                let same = |origin: &Option<&Origin>| {
                    origin.is_some_and(|origin| origin.identity == first.identity)
                };
                origins.iter().all(same) && first.links == members.len() as u64
            });
            let first = members.iter().map(|member| &of(member).path).min().cloned();
            regrouped.push((members.clone(), first, !one_before));
        }
        let mut also = Vec::new();
        for (members, first, differs) in regrouped {
            let all_same = members.iter().all(|(changed, _)| !changed);
            for (changed, index) in &members {
                let change = match changed {
                    true => &mut self.changes[*index],
                    false => &mut self.same_with_links[*index],
                };
                change.aspects.links = differs && change.before.is_some();
                if members.len() > 1 && first.as_ref() != Some(&change.path) {
                    change.linked_to = first.clone();
                }
                if !changed && (differs || !all_same) {
                    change.aspects.links = true;
                    also.push(change.clone());
                }
            }
        }
        self.changes.append(&mut also);
        self.changes.sort_by(|one, other| one.path.cmp(&other.path));
    }
}
