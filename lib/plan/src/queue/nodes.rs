//! Which of the nodes with room a job gets, as Slurm's `select/cons_tres` chooses (`_eval_nodes_consec` in
//! `src/plugins/topology/common/eval_nodes.c` of 24.11; `TopologyPlugin` and `LLN` of slurm.conf unset).
//!
//! Nodes with room that follow each other are a set. The set with the least room that is enough serves the job; where
//! none is enough, the one with the most room is taken whole and the search goes on among the others. Of a set, a job
//! that needs one more node gets the node with the least room, other jobs the first nodes. Slurm measures room by CPUs;
//! the plan knows none and takes the units of GPUs, as if jobs took CPUs in proportion.

/// A node with room for a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) node: usize,
    /// What jobs of this kind could take of it.
    pub(super) size: u32,
}

#[derive(Default)]
struct Set {
    rooms: Vec<Room>,
    size: u64,
}

/// Takes `wanted` of the nodes with room, whose numbers ascend. None where they are too few.
pub(super) fn choose(rooms: impl Iterator<Item = Room>, wanted: usize) -> Option<Vec<usize>> {
    match wanted {
        1 => one(rooms).map(|node| vec![node]),
        _ => several(rooms, wanted),
    }
}

/// The node for a job of one node: what [`several`] would take, without a list of the sets, as most jobs need one node.
fn one(rooms: impl Iterator<Item = Room>) -> Option<usize> {
    let mut best: Option<(u64, Room)> = None;
    let mut set: Option<(u64, Room)> = None;
    let mut next = usize::MAX;
    let less = |best: Option<(u64, Room)>, set: Option<(u64, Room)>| match (best, set) {
        (Some(best), Some(set)) if set.0 >= best.0 => Some(best),
        (best, set) => set.or(best),
    };
    for room in rooms {
        let size = u64::from(room.size);
        set = match set {
            Some((sum, least)) if room.node == next => {
                let least = if room.size < least.size { room } else { least };
                Some((sum + size, least))
            }
            _ => {
                best = less(best, set);
                Some((size, room))
            }
        };
        next = room.node + 1;
    }
    less(best, set).map(|(_, room)| room.node)
}

fn several(rooms: impl Iterator<Item = Room>, wanted: usize) -> Option<Vec<usize>> {
    let mut sets: Vec<Set> = Vec::new();
    let mut next = None;
    for room in rooms {
        if next != Some(room.node) {
            sets.push(Set::default());
        }
        next = Some(room.node + 1);
        if let Some(set) = sets.last_mut() {
            set.rooms.push(room);
            set.size += u64::from(room.size);
        }
    }
    let mut chosen = Vec::with_capacity(wanted);
    while chosen.len() < wanted {
        let left = wanted - chosen.len();
        let rank = |set: &Set| {
            if set.rooms.len() >= left { (0, set.size) } else { (1, u64::MAX - set.size) }
        };
        let (best, _) = sets.iter().enumerate().min_by_key(|(_, set)| rank(set))?;
        let rooms = sets.remove(best).rooms;
        match left {
            1 => chosen.extend(rooms.iter().min_by_key(|room| room.size).map(|it| it.node)),
            _ => chosen.extend(rooms.iter().map(|room| room.node).take(left)),
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(rooms: &[(usize, u32)], wanted: usize) -> Option<Vec<usize>> {
        let rooms = rooms.iter().map(|&(node, size)| Room { node, size });
        choose(rooms, wanted)
    }

    /// Promise (users): a plan chooses nodes as `select/cons_tres` does: the smallest set of neighbouring nodes that is
    /// enough, in it the node with the least room.
    // What Slurm 24.11 did: nodes 1 to 8 of 64 CPUs, with 16, 3, 5, 8, 16, 2, 0 and 0 jobs of a CPU, and no GPU free
    // on nodes 1 and 5.
    #[test]
    fn nodes_are_those_that_slurm_gave() {
        let free = [(2, 61), (3, 59), (4, 56), (6, 62), (7, 64), (8, 64)];
        assert_eq!(chosen(&free, 1), Some(vec![4]), "--gres=gpufrac:0.5");
        let by_four = free.map(|(node, free)| (node, free / 4 * 4));
        assert_eq!(chosen(&by_four, 1), Some(vec![3]), "-c4");
        let by_eight = free.map(|(node, free)| (node, free / 8 * 8));
        assert_eq!(chosen(&by_eight, 1), Some(vec![2]), "-c8");
        assert_eq!(chosen(&free, 2), Some(vec![2, 3]), "-N2");
        let each_one = free.map(|(node, _)| (node, 1));
        assert_eq!(
            chosen(&each_one, 4),
            Some(vec![2, 3, 4, 6]),
            "-N4 --ntasks-per-node=1"
        );
        // Then node 3 had no GPU free, node 6 no job, node 7 four.
        let later = [(2, 61), (4, 56), (6, 64), (7, 60), (8, 64)];
        assert_eq!(chosen(&later, 1), Some(vec![4]));
        assert_eq!(chosen(&later, 2), Some(vec![6, 7]), "-N2");
    }

    #[test]
    fn one_node_is_chosen_as_one_of_several() {
        let mut random = fastrand::Rng::with_seed(test_seed::seed());
        for _ in 0..2000 {
            let mut rooms = Vec::new();
            for node in 0..random.usize(..12) {
                if random.bool() {
                    let size = random.u32(1..6);
                    rooms.push(Room { node, size });
                }
            }
            let listed = several(rooms.iter().copied(), 1);
            assert_eq!(choose(rooms.iter().copied(), 1), listed, "{rooms:?}");
        }
    }

    #[test]
    fn too_few_nodes_are_none() {
        assert_eq!(chosen(&[(0, 1), (2, 1)], 3), None);
        assert_eq!(chosen(&[], 1), None);
        assert_eq!(chosen(&[], 0), Some(vec![]));
    }
}
