"""What goes wrong in ordinary days: killed jobs, broken inputs, too little memory."""
