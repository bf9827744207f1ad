//! Ensembles of decision trees: ONNX's `TreeEnsembleRegressor` and `TreeEnsembleClassifier` as arrays.
//!
//! The trees are checked when they are read, so that an evaluation can neither leave the arrays nor loop: every tree has one
//! root, from which each of its nodes is reached exactly once.

use std::collections::HashMap;

use crate::onnx::{Model, Node as Operator};

/// The largest number of nodes of all trees together.
pub const NODES_MAX: usize = 1 << 22;
/// The largest depth of a tree, which bounds the time of a prediction.
pub const DEPTH_MAX: u32 = 128;

/// A node. An inner node continues with `below` if the feature is at most the threshold, otherwise with `above`. In a leaf both
/// are the leaf's own index, and `threshold` is the value that it adds to the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    threshold: f32,
    feature: u32,
    below: u32,
    above: u32,
}

/// Trees whose leaf values are summed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    roots: Vec<u32>,
    base: f64,
    features: usize,
}

/// The result of a forest: the sum for one target, or the probability of the second of two classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regressor,
    Classifier,
}

impl Kind {
    fn operator(self) -> &'static str {
        match self {
            Self::Regressor => "TreeEnsembleRegressor",
            Self::Classifier => "TreeEnsembleClassifier",
        }
    }

    fn weights(self) -> [&'static str; 4] {
        match self {
            Self::Regressor => ["target_treeids", "target_nodeids", "target_ids", "target_weights"],
            Self::Classifier => ["class_treeids", "class_nodeids", "class_ids", "class_weights"],
        }
    }
}

impl Forest {
    /// Returns the sum over all trees. `inputs` must have one finite number per feature.
    pub(crate) fn evaluate(&self, inputs: &[f32]) -> f64 {
        debug_assert_eq!(inputs.len(), self.features);
        let mut sum = self.base;
        for &root in &self.roots {
            let mut at = root;
            loop {
                let node = self.nodes[at as usize];
                if node.below == at {
                    sum += f64::from(node.threshold);
                    break;
                }
                at = if inputs[node.feature as usize] <= node.threshold { node.below } else { node.above };
            }
        }
        sum
    }

    /// Reads the forest of a model with this number of features. The error names the problem and its location.
    pub(crate) fn read(model: &Model, kind: Kind, features: usize) -> Result<Self, String> {
        let operator = only_operator(model, kind)?;
        check_settings(operator, kind)?;
        let nodes = FileNodes::read(operator, features)?;
        let leaves = leaves(operator, kind, &nodes)?;
        let base = operator.floats("base_values").iter().map(|&value| f64::from(value)).sum::<f64>();
        let mut forest = Self { nodes: Vec::with_capacity(nodes.len()), roots: Vec::new(), base, features };
        for tree in nodes.roots()? {
            forest.add_tree(&nodes, &leaves, tree)?;
        }
        // Every node has at most one parent, so a node that no root reaches belongs to a cycle.
        if forest.nodes.len() != nodes.len() {
            return Err(format!("{} nodes of the trees cannot be reached", nodes.len() - forest.nodes.len()));
        }
        if !base.is_finite() {
            return Err("base_values holds a number that is not finite".to_owned());
        }
        Ok(forest)
    }

    /// Adds one tree, with its nodes in depth-first order.
    fn add_tree(&mut self, nodes: &FileNodes<'_>, leaves: &[f32], root: usize) -> Result<(), String> {
        self.roots.push(self.next()?);
        // Index in the file, depth, and the node whose second branch this is.
        let mut stack = vec![(root, 0u32, None::<usize>)];
        while let Some((at, depth, above_of)) = stack.pop() {
            let here = self.next()?;
            if let Some(parent) = above_of {
                self.nodes[parent].above = here;
            }
            match nodes.branches[at] {
                None => self.nodes.push(Node { threshold: leaves[at], feature: 0, below: here, above: here }),
                Some((_, _)) if depth >= DEPTH_MAX => {
                    return Err(format!("tree {} is deeper than the limit of {DEPTH_MAX} comparisons", nodes.trees[at]));
                }
                Some((below, above)) => {
                    let feature = nodes.features[at];
                    self.nodes.push(Node { threshold: nodes.values[at], feature, below: here + 1, above: here + 1 });
                    // The last one pushed is added next, directly after its parent.
                    stack.push((above, depth + 1, Some(here as usize)));
                    stack.push((below, depth + 1, None));
                }
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<u32, String> {
        u32::try_from(self.nodes.len()).map_err(|_| "too many nodes".to_owned())
    }
}

/// Returns the only operator of the graph that computes a value.
fn only_operator(model: &Model, kind: Kind) -> Result<&Operator, String> {
    let graph = model.graph.as_ref().ok_or("not an ONNX model: it has no graph")?;
    let mut found = None;
    for operator in &graph.node {
        match operator.op_type.as_str() {
            // Passes the result on under another name.
            "Identity" => {}
            name if name == kind.operator() && found.is_none() => found = Some(operator),
            name => return Err(format!("the graph has the operator {name:?}; only one {} is supported", kind.operator())),
        }
    }
    found.ok_or_else(|| format!("the graph has no {}", kind.operator()))
}

/// Refuses every attribute of the operator that makes the result differ from a plain sum.
fn check_settings(operator: &Operator, kind: Kind) -> Result<(), String> {
    for (name, allowed) in [("post_transform", "NONE"), ("aggregate_function", "SUM")] {
        if let Some(value) = operator.string(name)
            && value != allowed.as_bytes()
        {
            return Err(format!("{name} is {:?}; only {allowed} is supported", String::from_utf8_lossy(value)));
        }
    }
    for name in ["nodes_values_as_tensor", "target_weights_as_tensor", "class_weights_as_tensor", "base_values_as_tensor"] {
        if operator.has(name) {
            return Err(format!("the operator has {name}; only 32-bit floats are supported"));
        }
    }
    match kind {
        Kind::Regressor if operator.int("n_targets") != Some(1) => {
            Err(format!("n_targets is {:?}; one target is supported", operator.int("n_targets")))
        }
        Kind::Classifier if operator.ints("classlabels_int64s") != [0, 1] => {
            Err(format!("the classes are {:?}; 0 and 1 are supported", operator.ints("classlabels_int64s")))
        }
        // With these attributes a classifier's result is one sum: the probability of the second class.
        Kind::Classifier if !operator.floats("class_weights").iter().all(|&weight| weight >= 0.0) => {
            Err("class_weights holds a negative number; a forest's weights are probabilities".to_owned())
        }
        Kind::Classifier if !operator.floats("base_values").is_empty() => {
            Err("the operator has base_values; a classifier must not have them".to_owned())
        }
        _ => Ok(()),
    }
}

/// The nodes as the file stores them: parallel arrays, with nodes named by tree and number.
struct FileNodes<'a> {
    trees: &'a [i64],
    values: &'a [f32],
    features: Vec<u32>,
    /// Indices of the two branches; `None` for a leaf.
    branches: Vec<Option<(usize, usize)>>,
    places: HashMap<(i64, i64), usize>,
}

impl<'a> FileNodes<'a> {
    fn read(operator: &'a Operator, features: usize) -> Result<Self, String> {
        let (trees, numbers) = (operator.ints("nodes_treeids"), operator.ints("nodes_nodeids"));
        let (below, above) = (operator.ints("nodes_truenodeids"), operator.ints("nodes_falsenodeids"));
        let (read, values, modes) = (operator.ints("nodes_featureids"), operator.floats("nodes_values"), operator.strings("nodes_modes"));
        let count = trees.len();
        if count == 0 || count > NODES_MAX {
            return Err(format!("nodes_treeids has {count} nodes; 1 to {NODES_MAX} are supported"));
        }
        for (name, length) in [
            ("nodes_nodeids", numbers.len()),
            ("nodes_truenodeids", below.len()),
            ("nodes_falsenodeids", above.len()),
            ("nodes_featureids", read.len()),
            ("nodes_values", values.len()),
            ("nodes_modes", modes.len()),
        ] {
            if length != count {
                return Err(format!("{name} has {length} entries, but nodes_treeids has {count}"));
            }
        }
        let mut places = HashMap::with_capacity(count);
        for (at, name) in trees.iter().copied().zip(numbers.iter().copied()).enumerate() {
            if places.insert(name, at).is_some() {
                return Err(format!("node {} of tree {} is duplicated", name.1, name.0));
            }
        }
        let mut nodes = Self { trees, values, features: vec![0; count], branches: vec![None; count], places };
        for at in 0..count {
            let name = || format!("node {} of tree {}", numbers[at], trees[at]);
            match modes[at].as_slice() {
                b"LEAF" => continue,
                b"BRANCH_LEQ" => {}
                other => {
                    return Err(format!("{} has the mode {:?}; BRANCH_LEQ and LEAF are supported", name(), String::from_utf8_lossy(other)));
                }
            }
            nodes.features[at] = u32::try_from(read[at])
                .ok()
                .filter(|&feature| (feature as usize) < features)
                .ok_or_else(|| format!("{} compares feature {}; there are {features}", name(), read[at]))?;
            if !values[at].is_finite() {
                return Err(format!("{} compares with {}, which is not finite", name(), values[at]));
            }
            let branch = |to: i64| {
                nodes.places.get(&(trees[at], to)).copied().ok_or_else(|| format!("{} leads to node {to}, which does not exist", name()))
            };
            nodes.branches[at] = Some((branch(below[at])?, branch(above[at])?));
        }
        Ok(nodes)
    }

    fn len(&self) -> usize {
        self.trees.len()
    }

    /// Returns the root of each tree, in the order of the file.
    fn roots(&self) -> Result<Vec<usize>, String> {
        let mut has_parent = vec![false; self.len()];
        for (below, above) in self.branches.iter().flatten() {
            for &child in [below, above] {
                if std::mem::replace(&mut has_parent[child], true) {
                    return Err(format!("a node of tree {} has two parents", self.trees[child]));
                }
            }
        }
        let roots: Vec<usize> = (0..self.len()).filter(|&at| !has_parent[at]).collect();
        let mut seen = HashMap::with_capacity(roots.len());
        for &root in &roots {
            if seen.insert(self.trees[root], root).is_some() {
                return Err(format!("tree {} has two roots", self.trees[root]));
            }
        }
        Ok(roots)
    }
}

/// Returns the value that each leaf adds to the sum, by index; 0 for a leaf without a weight.
fn leaves(operator: &Operator, kind: Kind, nodes: &FileNodes<'_>) -> Result<Vec<f32>, String> {
    let [trees, numbers, ids, weights] = kind.weights();
    let (of_tree, of_node, of_id, weight) = (operator.ints(trees), operator.ints(numbers), operator.ints(ids), operator.floats(weights));
    for (name, length) in [(numbers, of_node.len()), (ids, of_id.len()), (weights, weight.len())] {
        if length != of_tree.len() {
            return Err(format!("{name} has {length} entries, but {trees} has {}", of_tree.len()));
        }
    }
    let mut added = vec![0.0f32; nodes.len()];
    for at in 0..of_tree.len() {
        let name = format!("node {} of tree {}", of_node[at], of_tree[at]);
        let place =
            *nodes.places.get(&(of_tree[at], of_node[at])).ok_or_else(|| format!("{weights} names {name}, which does not exist"))?;
        if nodes.branches[place].is_some() {
            return Err(format!("{weights} names {name}, which is not a leaf"));
        }
        if of_id[at] != of_id[0] {
            return Err(format!("{ids} names {} and {}; one is supported", of_id[0], of_id[at]));
        }
        if !weight[at].is_finite() {
            return Err(format!("{weights} of {name} is {}, which is not finite", weight[at]));
        }
        added[place] += weight[at];
    }
    Ok(added)
}

#[cfg(test)]
mod tests;
