"""What makes a formula on clean rows a function of any tensor, in every derivative mode."""
