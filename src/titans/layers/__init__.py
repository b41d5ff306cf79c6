"""nn.Modules built on the ops: token mixers and their parts."""
